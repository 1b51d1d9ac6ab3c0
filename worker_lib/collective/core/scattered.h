// Scattered: a sequence of bytes that lies in memory in one piece or in several: the tensors of
// one collective, one after the other.
//
// A view, cheap to copy when it is one piece. The memory and the list of pieces must outlive it.
// Only copy_to() and copy_from() read and write the bytes. Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "worker_lib/collective/core/range.h"

namespace ddprun {

using ReadableBytes = std::span<const char>;
using WritableBytes = std::span<char>;
// The memory of a list of tensors.
using ReadableList = std::span<const ReadableBytes>;
using WritableList = std::span<const WritableBytes>;

// Returns a list of one element, which must outlive it.
template <class Byte>
std::span<const std::span<Byte>> list_of(const std::span<Byte>& one) {
  return {&one, 1};
}

// Copies as memcpy does, and allows empty ranges at null.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// memcpy, or a function with the same effect.
using CopyBytes = void (*)(void* to, const void* from, std::size_t bytes);

// Byte: char, or const char for bytes that are only read.
template <class Byte>
class Scattered {
 public:
  Scattered() = default;
  explicit Scattered(std::span<Byte> one) : one_(one), bytes_(one.size()) {}
  explicit Scattered(std::span<const std::span<Byte>> pieces) {
    if (pieces.size() == 1) one_ = pieces[0];
    if (pieces.size() > 1) many_ = pieces;
    for (const std::span<Byte>& piece : pieces) {
      if (pieces.size() > 1) begins_.push_back(bytes_);
      bytes_ += piece.size();
    }
  }
  std::size_t bytes() const { return bytes_; }
  // Returns the one piece; empty if there are several.
  std::span<Byte> whole() const { return one_; }

  // Calls visit(piece, offset, bytes) for each contiguous part of the range, in order. `piece`
  // points to its bytes; `offset` is where it begins within the range.
  template <class Visit>
  void for_each(Range range, Visit visit) const {
    if (many_.empty()) {
      visit(one_.data() + range.begin, std::size_t{0}, range.size());
      return;
    }
    std::size_t at = std::ranges::upper_bound(begins_, range.begin) - begins_.begin() - 1;
    for (std::size_t done = 0; done < range.size(); ++at) {
      const std::size_t from = range.begin + done - begins_[at];
      const std::size_t bytes = std::min(many_[at].size() - from, range.size() - done);
      if (bytes > 0) visit(many_[at].data() + from, done, bytes);
      done += bytes;
    }
  }

  void copy_to(char* to, Range range) const {
    for_each(range, [&](const char* piece, std::size_t offset, std::size_t bytes) {
      copy_bytes(to + offset, piece, bytes);
    });
  }

  // Copies to the range. `from` may already be the place of the bytes.
  void copy_from(const char* from, Range range, CopyBytes copy = copy_bytes) const
      requires(!std::is_const_v<Byte>) {
    for_each(range, [&](char* piece, std::size_t offset, std::size_t bytes) {
      if (piece != from + offset) copy(piece, from + offset, bytes);
    });
  }

 private:
  std::span<Byte> one_;
  std::span<const std::span<Byte>> many_;
  std::vector<std::size_t> begins_;  // of each piece of many_
  std::size_t bytes_ = 0;
};

}  // namespace ddprun
