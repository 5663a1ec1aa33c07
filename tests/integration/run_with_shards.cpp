// Runs a program's `forward` on ones of shape [1, 8], with every named-data file that is given, and prints its output.
//   run_with_shards PROGRAM.pte FILE.ptd...
#include <cstdio>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

int main(int count, char** arguments) {
  std::vector<std::string> files(arguments + 2, arguments + count);
  executorch::extension::Module module(arguments[1], files);
  auto input = executorch::extension::make_tensor_ptr({1, 8}, std::vector<float>(8, 1.0f));
  const auto outputs = module.forward(input);
  if (!outputs.ok()) {
    std::fprintf(stderr, "error %x\n", static_cast<unsigned>(outputs.error()));
    return 1;
  }
  const auto tensor = outputs->at(0).toTensor();
  for (ssize_t i = 0; i < tensor.numel(); ++i) {
    std::printf("%.9g\n", tensor.const_data_ptr<float>()[i]);
  }
}
