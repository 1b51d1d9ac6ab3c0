#include "examples/text_data.h"

#include <openssl/evp.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

namespace examples {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error("read " + path + ": " + what);
}

[[noreturn]] void fail_at(const std::string& path, std::size_t offset, const std::string& what) {
  fail(path, "at offset " + std::to_string(offset) + ": " + what);
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string bytes_of(const std::string& path) {
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rbe"));
  if (!file) fail(path, std::strerror(errno));
  std::string bytes;
  std::array<char, 1 << 16> part;
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), file.get()))
    bytes.append(part.data(), got);
  if (std::ferror(file.get())) fail_at(path, bytes.size(), std::strerror(errno));
  if (bytes.empty()) fail(path, "the file is empty");
  return bytes;
}

std::string sha256_of(const std::string& bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1)
    throw std::runtime_error("SHA-256 failed");
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", digest[i]);
    text += two;
  }
  return text;
}

// Returns the number of bytes of a UTF-8 character that begins with this byte; 0 if none does.
std::size_t length_by_first(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;  // a continuation byte, or an overlong encoding of ASCII
  if (first < 0xe0) return 2;
  if (first < 0xf0) return 3;
  return first < 0xf5 ? 4 : 0;
}

bool is_character(char32_t point, std::size_t length) {
  constexpr std::array<char32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  return point >= kLeast[length] && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
}

std::u32string characters_of(const std::string& path, const std::string& bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  std::u32string characters;
  characters.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = length_by_first(byte(at));
    char32_t point = length < 2 ? byte(at) : byte(at) & (0x7fu >> length);
    bool good = length > 0;
    for (std::size_t next = at + 1; good && next < at + length; ++next) {
      if (next == bytes.size())
        fail_at(path, next,
                "the file ends within a character of " + std::to_string(length) + " bytes");
      good = (byte(next) & 0xc0) == 0x80;
      point = point << 6 | (byte(next) & 0x3fu);
    }
    if (!good || !is_character(point, length)) {
      char hex[3];
      std::snprintf(hex, sizeof hex, "%02x", byte(at));
      fail_at(path, at,
              std::string("no character of UTF-8 (it would begin with byte 0x") + hex + ")");
    }
    characters.push_back(point);
    at += length;
  }
  return characters;
}

void append_utf8(std::string& text, char32_t point) {
  const auto add = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (point < 0x80) return add(point);
  if (point < 0x800) {
    add(0xc0 | point >> 6);
  } else if (point < 0x10000) {
    add(0xe0 | point >> 12);
    add(0x80 | (point >> 6 & 0x3f));
  } else {
    add(0xf0 | point >> 18);
    add(0x80 | (point >> 12 & 0x3f));
    add(0x80 | (point >> 6 & 0x3f));
  }
  add(0x80 | (point & 0x3f));
}

}  // namespace

Text::Text(const std::string& path) : path_(path) {
  const std::string bytes = bytes_of(path);
  const std::u32string characters = characters_of(path, bytes);
  sha256_ = sha256_of(bytes);
  vocabulary_ = characters;
  std::ranges::sort(vocabulary_);
  vocabulary_.erase(std::ranges::unique(vocabulary_).begin(), vocabulary_.end());
  ids_ = torch::empty(static_cast<std::int64_t>(characters.size()), torch::kInt64);
  std::ranges::transform(characters, ids_.mutable_data_ptr<std::int64_t>(), [&](char32_t point) {
    return std::ranges::lower_bound(vocabulary_, point) - vocabulary_.begin();
  });
}

std::string Text::spelled(const torch::Tensor& ids) const {
  std::string text;
  for (std::int64_t i = 0; i < ids.size(0); ++i)
    append_utf8(text, vocabulary_.at(static_cast<std::size_t>(ids[i].item<std::int64_t>())));
  return text;
}

Blocks::Blocks(const Text& text, Part part, std::int64_t length) {
  const std::int64_t all = text.ids().size(0), training = all * 9 / 10;
  const bool first = part == Part::kTraining;
  const torch::Tensor ids =
      first ? text.ids().narrow(0, 0, training) : text.ids().narrow(0, training, all - training);
  if (ids.size(0) <= length)
    fail(text.path(), "its " + std::string(first ? "first nine tenths have " : "last tenth has ") +
                          std::to_string(ids.size(0)) + " characters; blocks of " +
                          std::to_string(length) + " need at least " + std::to_string(length + 1));
  windows_ = ids.unfold(0, length + 1, first ? 1 : length);
}

torch::data::Example<> Blocks::get_batch(torch::ArrayRef<std::size_t> indices) {
  const torch::Tensor rows =
      torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
  const torch::Tensor windows = windows_.index_select(0, rows);
  const std::int64_t length = windows.size(1) - 1;
  return {windows.narrow(1, 0, length), windows.narrow(1, 1, length)};
}

}  // namespace examples
