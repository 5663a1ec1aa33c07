// Three kernels for tests, written against the headers in ExecuTorch's wheel, which has no sources of kernels.
#include <executorch/runtime/kernel/kernel_includes.h>

#ifdef EXECUTORCH_SELECTIVE_BUILD_DTYPE
#include "selected_op_variants.h"
#else
static constexpr bool should_include_kernel_dtype(const char*, executorch::aten::ScalarType) {
  return true;
}
#endif

namespace torch {
namespace executor {
namespace native {

using executorch::aten::IntArrayRef;
using executorch::aten::Scalar;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;

// Has a symbol of its own for each dtype, which tests look for.
template <class T>
[[gnu::noinline]] void rectify(const Tensor& in, Tensor& out) {
  for (ssize_t i = 0; i < in.numel(); ++i) {
    const T value = in.const_data_ptr<T>()[i];
    out.mutable_data_ptr<T>()[i] = value > T(0) ? value : T(0);
  }
}

Tensor& relu_out(KernelRuntimeContext& context, const Tensor& in, Tensor& out) {
  ET_KERNEL_CHECK(context, resize_tensor(out, in.sizes()) == Error::Ok, InvalidArgument, out);
  if constexpr (should_include_kernel_dtype("relu.out", ScalarType::Double)) {
    if (in.scalar_type() == ScalarType::Double) {
      rectify<double>(in, out);
      return out;
    }
  }
  if constexpr (should_include_kernel_dtype("relu.out", ScalarType::Float)) {
    if (in.scalar_type() == ScalarType::Float) {
      rectify<float>(in, out);
      return out;
    }
  }
  context.fail(Error::InvalidArgument);
  return out;
}

Tensor& addmm_out(
    KernelRuntimeContext& context,
    const Tensor& self,
    const Tensor& mat1,
    const Tensor& mat2,
    const Scalar& /*beta*/,
    const Scalar& /*alpha*/,
    Tensor& out) {
  ET_KERNEL_CHECK(context, self.scalar_type() == ScalarType::Float && self.dim() == 1, InvalidArgument, out);
  const auto rows = mat1.size(0), inner = mat1.size(1), columns = mat2.size(1);
  for (ssize_t i = 0; i < rows; ++i) {
    for (ssize_t j = 0; j < columns; ++j) {
      float sum = self.const_data_ptr<float>()[j];
      for (ssize_t k = 0; k < inner; ++k) {
        sum += mat1.const_data_ptr<float>()[i * inner + k] * mat2.const_data_ptr<float>()[k * columns + j];
      }
      out.mutable_data_ptr<float>()[i * columns + j] = sum;
    }
  }
  return out;
}

// Transposes a matrix.
Tensor& permute_copy_out(KernelRuntimeContext& context, const Tensor& in, IntArrayRef dims, Tensor& out) {
  ET_KERNEL_CHECK(context, in.dim() == 2 && dims.size() == 2 && dims[0] == 1, InvalidArgument, out);
  for (ssize_t i = 0; i < in.size(0); ++i) {
    for (ssize_t j = 0; j < in.size(1); ++j) {
      out.mutable_data_ptr<float>()[j * in.size(0) + i] = in.const_data_ptr<float>()[i * in.size(1) + j];
    }
  }
  return out;
}

} // namespace native
} // namespace executor
} // namespace torch
