// Prints the kernels that are registered, then what each method of a program computes from numbers that repeat 0, 1, 2.
//
//   run_kernels [PROGRAM.pte [NAMED_DATA.ptd...]]
//
// A line is `kernel NAME`, `METHOD error HEX` or `METHOD result HEX...` with the bytes of the outputs. Each method runs in a
// program of its own, at its largest sizes.
#include <cstdio>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/runtime.h>

using executorch::extension::Module;
using executorch::runtime::EValue;

template <class T>
static executorch::extension::TensorPtr ramp(const executorch::runtime::TensorInfo& info) {
  std::vector<executorch::aten::SizesType> sizes(info.sizes().begin(), info.sizes().end());
  size_t count = 1;
  for (auto size : sizes) {
    count *= static_cast<size_t>(size);
  }
  std::vector<T> data(count);
  for (size_t i = 0; i < count; ++i) {
    data[i] = static_cast<T>(i % 3);
  }
  return executorch::extension::make_tensor_ptr(std::move(sizes), std::move(data));
}

static int run(Module& module, const std::string& method) {
  auto meta = module.method_meta(method);
  if (!meta.ok()) {
    return static_cast<int>(meta.error());
  }
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<EValue> inputs;
  for (size_t i = 0; i < meta->num_inputs(); ++i) {
    auto info = meta->input_tensor_meta(i).get();
    const bool is_long = info.scalar_type() == executorch::aten::ScalarType::Long;
    tensors.push_back(is_long ? ramp<int64_t>(info) : ramp<float>(info));
    inputs.emplace_back(*tensors.back());
  }
  auto outputs = module.execute(method, inputs);
  if (!outputs.ok()) {
    return static_cast<int>(outputs.error());
  }
  std::printf("%s result", method.c_str());
  for (const auto& output : *outputs) {
    if (!output.isTensor()) {
      continue;
    }
    const auto& tensor = output.toTensor();
    std::printf(" ");
    const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) {
      std::printf("%02x", bytes[i]);
    }
  }
  std::printf("\n");
  return 0;
}

int main(int count, char** words) {
  executorch::runtime::runtime_init();
  for (const auto& kernel : executorch::ET_RUNTIME_NAMESPACE::get_registered_kernels()) {
    std::printf("kernel %s\n", kernel.name_);
  }
  if (count < 2) {
    return 0;
  }
  const std::vector<std::string> named_data(words + 2, words + count);
  auto names = Module(words[1], named_data).method_names();
  if (!names.ok()) {
    std::printf("error %x\n", static_cast<unsigned>(names.error()));
    return 1;
  }
  int failed = 0;
  for (const auto& name : *names) {
    Module module(words[1], named_data);
    if (const int error = run(module, name)) {
      std::printf("%s error %x\n", name.c_str(), static_cast<unsigned>(error));
      failed = 1;
    }
  }
  return failed;
}
