// An operator for tests: demo::scale(x, factor), with the out variant that a program calls.
#include <ATen/ATen.h>
#include <torch/library.h>

at::Tensor& scale_out(const at::Tensor& x, double factor, at::Tensor& out) {
  out.resize_(x.sizes());
  return at::mul_out(out, x, at::scalar_tensor(factor, x.options()));
}

at::Tensor scale(const at::Tensor& x, double factor) {
  at::Tensor out = at::empty_like(x);
  return scale_out(x, factor, out);
}

at::Tensor scale_meta(const at::Tensor& x, double) {
  return at::empty_like(x);
}

TORCH_LIBRARY(demo, library) {
  library.def("scale(Tensor x, float factor) -> Tensor");
  library.def("scale.out(Tensor x, float factor, *, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(demo, CPU, library) {
  library.impl("scale", scale);
  library.impl("scale.out", scale_out);
}

TORCH_LIBRARY_IMPL(demo, Meta, library) {
  library.impl("scale", scale_meta);
}
