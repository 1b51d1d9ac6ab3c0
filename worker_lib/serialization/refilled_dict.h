// RefilledDict: makes a dict with the keys of an earlier save. LibTorch takes much longer to make a
// dict than to compare the keys of one that is there.
//
//   RefilledDict dict(std::move(old), make_string_dict);
//   for (...) dict.add(name, tensor);
//   PickleDict result = dict.finish();
//
// If the keys come in the order of the old dict, it is the result, with new values. Otherwise the
// result is a new dict. Both have the same entries in the same order.
//
// One owner thread. Throws what LibTorch throws (memory).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {

class RefilledDict {
 public:
  using MakeDict = PickleDict (*)();

  // old: nullopt, or a dict that nothing else uses, because its values change. make: makes an empty
  // dict of the same type.
  RefilledDict(std::optional<PickleDict> old, MakeDict make)
      : make_(make),
        is_old_(old.has_value()),
        dict_(old ? *std::move(old) : make()),
        next_(dict_.begin()) {}

  // Makes room for this many entries. Call it first.
  void reserve(std::size_t entries) {
    if (!is_old_) dict_.reserve(entries);
  }

  // Adds an entry. key: an integer or a text, as a value or not, that differs from all others.
  template <class Key>
  void add(const Key& key, c10::IValue value) {
    if (is_next(key)) {
      next_->setValue(std::move(value));
      ++next_;
      return;
    }
    leave_old();
    dict_.insert(key, std::move(value));
  }

  // Returns the dict that the old one has under this key; nullopt if there is none. Refill it, and
  // add the result next, or add nothing under this key.
  std::optional<PickleDict> old_dict(std::int64_t key) const {
    if (!is_next(key) || !next_->value().isGenericDict()) return std::nullopt;
    return next_->value().toGenericDict();
  }

  // Returns the dict. Call it once.
  PickleDict finish() {
    if (is_old_ && next_ != dict_.end()) leave_old();
    return std::move(dict_);
  }

 private:
  static bool is_equal(const c10::IValue& a, std::int64_t b) { return a.isInt() && a.toInt() == b; }
  static bool is_equal(const c10::IValue& a, const std::string& b) {
    return a.isString() && a.toStringRef() == b;
  }
  static bool is_equal(const c10::IValue& a, const c10::IValue& b) {
    return a.is(b) || (b.isString() && is_equal(a, b.toStringRef()));
  }
  template <class Key>
  bool is_next(const Key& key) const {
    return is_old_ && next_ != dict_.end() && is_equal(next_->key(), key);
  }

  // Goes on with a new dict, which gets the entries so far.
  void leave_old() {
    if (!is_old_) return;
    PickleDict made = make_();
    for (auto entry = dict_.begin(); entry != next_; ++entry)
      made.insert(entry->key(), entry->value());
    dict_ = std::move(made);
    is_old_ = false;
  }

  MakeDict make_;
  bool is_old_;
  PickleDict dict_;
  PickleDict::iterator next_;  // of the old dict
};

}  // namespace ddprun
