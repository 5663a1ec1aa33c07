#ifndef ETBUILD_TYPED_PROGRAM_H_
#define ETBUILD_TYPED_PROGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

namespace etbuild {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Result;

// A file that the program needs, with the size that it had when the wrapper was written.
struct File {
  const char* name;
  size_t size;
};

// A program, and its named data if it has any, in the memory of the application.
struct Embedded {
  const void* program;
  size_t program_size;
  const void* named_data;
  size_t named_data_size;
};

template <class T>
constexpr ScalarType type_of() {
  return executorch::runtime::CppTypeToScalarType<T>::value;
}

// Whether the elements of a tensor are in memory in the order of its dimensions.
template <class Order>
bool is_row_major(const Order& order) {
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) {
      return false;
    }
  }
  return true;
}

// An argument of a static shape. It does not copy the elements, which must live until the call returns.
template <class T, int64_t... kSizes>
class Input {
 public:
  static constexpr size_t kCount = static_cast<size_t>((kSizes * ... * 1));

  template <size_t kGiven>
  Input(const std::array<T, kGiven>& elements) : data_(elements.data()) {
    static_assert(kGiven == kCount, "the argument has another number of elements than the method's tensor");
  }
  template <size_t kGiven>
  Input(const T (&elements)[kGiven]) : data_(elements) {
    static_assert(kGiven == kCount, "the argument has another number of elements than the method's tensor");
  }
  // The caller answers for `kCount` elements.
  static Input from_pointer(const T* elements) {
    return Input(elements, nullptr);
  }

  Result<TensorPtr> tensor() const {
    return executorch::extension::from_blob(
        const_cast<T*>(data_), {static_cast<SizesType>(kSizes)...}, type_of<T>());
  }

 private:
  Input(const T* elements, std::nullptr_t) : data_(elements) {}
  const T* data_;
};

// An argument of a dynamic shape: each size is at most the one in `kSizes`. It does not copy the elements.
template <class T, int64_t... kSizes>
class DynamicInput {
 public:
  using Sizes = std::array<SizesType, sizeof...(kSizes)>;

  // The caller answers for as many elements as the sizes say.
  DynamicInput(const T* elements, Sizes sizes) : data_(elements), sizes_(sizes) {}

  // InvalidArgument if a size is larger than the method's tensor.
  Result<TensorPtr> tensor() const {
    constexpr std::array<int64_t, sizeof...(kSizes)> largest = {kSizes...};
    for (size_t i = 0; i < largest.size(); ++i) {
      if (sizes_[i] < 0 || sizes_[i] > largest[i]) {
        return Error::InvalidArgument;
      }
    }
    return executorch::extension::from_blob(
        const_cast<T*>(data_), std::vector<SizesType>(sizes_.begin(), sizes_.end()), type_of<T>());
  }

 private:
  const T* data_;
  Sizes sizes_;
};

// A result. Its elements belong to the method, whose next call overwrites them.
template <class T, size_t kRank>
class Output {
 public:
  static Result<Output> from(const EValue& value) {
    if (!value.isTensor() || value.toTensor().scalar_type() != type_of<T>() ||
        value.toTensor().dim() != static_cast<ssize_t>(kRank) ||
        !is_row_major(value.toTensor().dim_order())) {
      return Error::InvalidType;
    }
    return Output(value.toTensor());
  }

  const T* data() const {
    return tensor_.template const_data_ptr<T>();
  }
  const T* begin() const {
    return data();
  }
  const T* end() const {
    return data() + size();
  }
  const T& operator[](size_t index) const {
    return data()[index];
  }
  // The number of elements.
  size_t size() const {
    return static_cast<size_t>(tensor_.numel());
  }
  std::array<SizesType, kRank> sizes() const {
    std::array<SizesType, kRank> found{};
    for (size_t i = 0; i < kRank; ++i) {
      found[i] = tensor_.size(static_cast<ssize_t>(i));
    }
    return found;
  }

 private:
  explicit Output(executorch::aten::Tensor tensor) : tensor_(tensor) {}
  executorch::aten::Tensor tensor_;
};

// Calls a method. `Outputs` are the types of its results.
template <class... Outputs, class... Inputs>
Result<std::tuple<Outputs...>> call(
    executorch::extension::Module& module,
    const char* method,
    const Inputs&... inputs) {
  // A tensor must live until the call returns.
  std::vector<TensorPtr> tensors;
  std::vector<EValue> values;
  Error error = Error::Ok;
  auto add = [&](const auto& input) {
    if constexpr (std::is_same_v<std::decay_t<decltype(input)>, EValue>) {
      values.push_back(input);
    } else if (error == Error::Ok) {
      auto tensor = input.tensor();
      if (!tensor.ok()) {
        error = tensor.error();
        return;
      }
      tensors.push_back(*tensor);
      values.emplace_back(tensors.back());
    }
  };
  (add(inputs), ...);
  if (error != Error::Ok) {
    return error;
  }
  // A method that takes channels_last images would read the elements in another order.
  auto meta = module.method_meta(method);
  if (!meta.ok()) {
    return meta.error();
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor()) {
      auto input = meta->input_tensor_meta(i);
      if (!input.ok() || !is_row_major(input->dim_order())) {
        return Error::NotSupported;
      }
    }
  }
  auto results = module.execute(method, values);
  if (!results.ok()) {
    return results.error();
  }
  if (results->size() != sizeof...(Outputs)) {
    return Error::InvalidProgram;
  }
  size_t next = 0;
  // The elements of a braced list are evaluated from left to right.
  std::tuple<Result<Outputs>...> found{Outputs::from((*results)[next++])...};
  return std::apply(
      [](auto&... each) -> Result<std::tuple<Outputs...>> {
        Error wrong = Error::Ok;
        ((wrong = wrong == Error::Ok && !each.ok() ? each.error() : wrong), ...);
        if (wrong != Error::Ok) {
          return wrong;
        }
        return std::tuple<Outputs...>{std::move(*each)...};
      },
      found);
}

// A program whose files may be loaded, before its methods are called.
class Program {
 public:
  Program(const std::string& directory, std::vector<File> files, bool shared_memory) : directory_(directory), files_(std::move(files)) {
    std::vector<std::string> named_data;
    for (size_t i = 1; i < files_.size(); ++i) {
      named_data.push_back(path(files_[i]));
    }
    module_ = std::make_unique<executorch::extension::Module>(
        path(files_[0]), named_data, executorch::extension::Module::LoadMode::Mmap, nullptr, nullptr, nullptr, shared_memory);
  }
  Program(const Embedded& embedded, bool shared_memory) {
    using executorch::extension::BufferDataLoader;
    auto named_data = embedded.named_data == nullptr
        ? nullptr
        : std::make_unique<BufferDataLoader>(embedded.named_data, embedded.named_data_size);
    module_ = std::make_unique<executorch::extension::Module>(
        std::make_unique<BufferDataLoader>(embedded.program, embedded.program_size),
        nullptr,
        nullptr,
        nullptr,
        std::move(named_data),
        shared_memory);
  }

  // Loads the program and these methods. AccessFailed if a file is missing, InvalidExternalData if it has another size
  // than it had when the wrapper was written: a backend may crash if it does not find its data.
  Error load(std::initializer_list<const char*> methods) {
    for (const File& file : files_) {
      std::ifstream stream(path(file), std::ios::binary | std::ios::ate);
      if (!stream) {
        return Error::AccessFailed;
      }
      if (static_cast<size_t>(stream.tellg()) != file.size) {
        return Error::InvalidExternalData;
      }
    }
    Error error = module_->load();
    for (const char* method : methods) {
      if (error == Error::Ok) {
        error = module_->load_method(method);
      }
    }
    return error;
  }

  executorch::extension::Module& module() {
    return *module_;
  }

 private:
  std::string path(const File& file) const {
    return directory_.empty() ? file.name : directory_ + "/" + file.name;
  }

  std::string directory_;
  std::vector<File> files_;
  std::unique_ptr<executorch::extension::Module> module_;
};

} // namespace etbuild

#endif // ETBUILD_TYPED_PROGRAM_H_
