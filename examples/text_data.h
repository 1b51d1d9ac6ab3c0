// Texts for language models: characters as numbers, and blocks of them as a dataset for LibTorch's
// data loaders. One thread at a time.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace examples {

// A file in UTF-8. Each character (a code point; nothing is normalised, a line's end is what the
// file has) is a number: its place among the characters of the file in the order of their code
// points.
class Text {
 public:
  // Throws std::runtime_error that names the file where it cannot be read or is empty, and the
  // offset in bytes too where it is not UTF-8 or ends within a character.
  explicit Text(const std::string& path);

  const std::string& path() const { return path_; }
  // int64, one for each character.
  const torch::Tensor& ids() const { return ids_; }
  // How many different characters there are.
  std::int64_t vocabulary_size() const { return static_cast<std::int64_t>(vocabulary_.size()); }
  // SHA-256 of the file, 64 hexadecimal digits.
  const std::string& sha256() const { return sha256_; }

  // In UTF-8. ids: int64, one dimension, each below vocabulary_size().
  std::string spelled(const torch::Tensor& ids) const;

 private:
  std::string path_;
  std::string sha256_;
  std::u32string vocabulary_;  // ascending
  torch::Tensor ids_;
};

// Blocks of `length` characters, and for each character the one behind it. Copies share the text.
class Blocks : public torch::data::datasets::BatchDataset<Blocks, torch::data::Example<>> {
 public:
  // kTraining: the first nine tenths of the text; a block begins at every character that has enough
  // behind it. kValidation: the last tenth; blocks that do not overlap.
  enum class Part { kTraining, kValidation };

  // Throws std::runtime_error that names the text's file where the part is shorter than length + 1.
  Blocks(const Text& text, Part part, std::int64_t length);

  // data, target: int64, count x length.
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override { return windows_.size(0); }

 private:
  torch::Tensor windows_;  // a view of the text, blocks x (length + 1)
};

}  // namespace examples
