// Runs methods of a program in turn, each on ones of shape [COUNT], with one memory for all methods, and prints what each
// returns.
//   run_methods PROGRAM.pte METHOD COUNT [METHOD COUNT]...
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

using executorch::extension::Module;

int main(int count, char** arguments) {
  Module module(arguments[1], Module::LoadMode::File, nullptr, nullptr, nullptr, /*share_memory_arenas=*/true);
  for (int i = 2; i < count; i += 2) {
    const int size = std::atoi(arguments[i + 1]);
    auto input = executorch::extension::make_tensor_ptr({size}, std::vector<float>(size, 1.0f));
    const auto outputs = module.execute(arguments[i], input);
    if (!outputs.ok()) {
      std::fprintf(stderr, "error %x\n", static_cast<unsigned>(outputs.error()));
      return 1;
    }
    const auto tensor = outputs->at(0).toTensor();
    for (ssize_t j = 0; j < tensor.numel(); ++j) {
      std::printf("%g ", tensor.const_data_ptr<float>()[j]);
    }
    std::printf("\n");
  }
}
