// Texts for language models: characters as numbers, and blocks of these numbers as a dataset for
// LibTorch's data loaders. One thread at a time.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace examples {

// Text: a file in UTF-8 as numbers. A character is a code point. Nothing is normalised, and line
// ends stay as they are. The number of a character is its place among the different characters of
// the file, in the order of their code points.
class Text {
 public:
  // Throws std::runtime_error that names the file if it cannot be read or is empty. If it is not
  // UTF-8 or ends within a character, the error also names the offset in bytes.
  explicit Text(const std::string& path);

  const std::string& path() const { return path_; }
  // Returns the numbers: int64, one for each character.
  const torch::Tensor& ids() const { return ids_; }
  // Returns the number of different characters.
  std::int64_t vocabulary_size() const { return static_cast<std::int64_t>(vocabulary_.size()); }
  // Returns the SHA-256 of the file, as 64 hexadecimal digits.
  const std::string& sha256() const { return sha256_; }

  // Returns the characters in UTF-8. ids: int64, one dimension, each below vocabulary_size().
  std::string spelled(const torch::Tensor& ids) const;

 private:
  std::string path_;
  std::string sha256_;
  std::u32string vocabulary_;  // ascending
  torch::Tensor ids_;
};

// Blocks: a dataset of blocks of `length` characters. Data are the characters of a block, and the
// target of each character is the one after it. Copies share the text.
class Blocks : public torch::data::datasets::BatchDataset<Blocks, torch::data::Example<>> {
 public:
  // kTraining: the first nine tenths of the text; a block begins at every character that has enough
  // characters after it. kValidation: the last tenth; the blocks do not overlap.
  enum class Part { kTraining, kValidation };

  // Throws std::runtime_error that names the text's file if the part is shorter than length + 1.
  Blocks(const Text& text, Part part, std::int64_t length);

  // data, target: int64, count x length.
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override { return windows_.size(0); }

 private:
  torch::Tensor windows_;  // a view of the text, blocks x (length + 1)
};

}  // namespace examples
