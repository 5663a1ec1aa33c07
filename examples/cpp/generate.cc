// Continues a text with the language model of examples/tiny_lm. Its weights are random, so the text has no meaning.
//   generate TEXT COUNT [DIRECTORY]
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifdef EMBEDDED
#include "tiny_lm_embedded_data.h"
#else
#include "tiny_lm_cc.h"
#endif

using Scores = etbuild::Output<float, 2>;

// Finds the token with the highest score, and prints it with the bits of the first scores: they tell whether two builds
// compute the same.
static bool next(const etbuild::Result<std::tuple<Scores>>& results, int64_t& token) {
  if (!results.ok()) {
    std::fprintf(stderr, "a method failed: error %#x\n", static_cast<unsigned>(results.error()));
    return false;
  }
  const Scores& scores = std::get<0>(*results);
  token = std::max_element(scores.begin(), scores.end()) - scores.begin();
  uint32_t bits[3];
  std::memcpy(bits, scores.data(), sizeof(bits));
  std::printf("%lld %08x %08x %08x\n", static_cast<long long>(token), bits[0], bits[1], bits[2]);
  return true;
}

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: %s TEXT COUNT [DIRECTORY]\n", arguments[0]);
    return 2;
  }
#ifdef EMBEDDED
  tiny_lm::TinyLm model(tiny_lm::embedded_files());
#else
  tiny_lm::TinyLm model(count > 3 ? arguments[3] : "examples/tiny_lm");
#endif
  if (const auto error = model.load(); error != etbuild::Error::Ok) {
    std::fprintf(stderr, "cannot load the program: error %#x\n", static_cast<unsigned>(error));
    return 1;
  }
  const std::string text = arguments[1];
  const std::vector<int64_t> prompt(text.begin(), text.end());
  int64_t token = 0;
  if (!next(model.prefill({prompt.data(), {1, static_cast<etbuild::SizesType>(prompt.size())}}), token)) {
    return 1;
  }
  int64_t position = static_cast<int64_t>(prompt.size());
  for (int left = std::atoi(arguments[2]) - 1; left > 0; --left) {
    const std::array<int64_t, 1> tokens = {token}, positions = {position++};
    if (!next(model.decode(tokens, positions), token)) {
      return 1;
    }
  }
}
