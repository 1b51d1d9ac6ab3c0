// ScreenModel: computes what a terminal shows for the bytes that it receives. It knows only the
// control sequences that ddprun uses. Any other sequence fails the test. One owner thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::testing_support {

class ScreenModel {
 public:
  ScreenModel(int columns, int rows)
      : columns_(static_cast<std::size_t>(columns)), rows_(static_cast<std::size_t>(rows)) {
    screen_.resize(rows_);
  }

  // Processes output. A \n also returns to the first column, as the kernel's terminal driver
  // does.
  void feed(std::string_view bytes) {
    pending_ += bytes;
    std::size_t at = 0;
    while (at < pending_.size()) {
      const std::size_t length = consume(std::string_view(pending_).substr(at));
      if (length == 0) break;  // an incomplete control sequence
      at += length;
    }
    pending_.erase(0, at);
  }

  // Returns everything that was ever visible: the lines that have scrolled away, then the
  // screen. Blanks at the ends of lines and empty lines at the end are removed.
  std::vector<std::string> lines() const {
    std::vector<std::string> all = scrolled_;
    all.insert(all.end(), screen_.begin(), screen_.end());
    for (std::string& line : all) line.erase(line.find_last_not_of(' ') + 1);
    while (!all.empty() && all.back().empty()) all.pop_back();
    return all;
  }
  bool was_coloured() const { return coloured_; }

 private:
  std::size_t consume(std::string_view bytes) {
    switch (bytes.front()) {
      case '\r': column_ = 0; return 1;
      case '\n':
        column_ = 0;
        line_feed();
        return 1;
      case '\x1b': return escape(bytes);
      default: put(bytes.front()); return 1;
    }
  }

  std::size_t escape(std::string_view bytes) {
    if (bytes.size() < 3) return 0;
    const std::size_t end = bytes.find_first_of("AJKmlh", 2);
    if (end == std::string_view::npos) {
      EXPECT_LT(bytes.size(), 16u) << "an unknown sequence";
      return 0;
    }
    const std::string argument(bytes.substr(2, end - 2));
    switch (bytes[end]) {
      case 'A':
        row_ -= std::min<std::size_t>(row_, std::strtoul(argument.c_str(), nullptr, 10));
        break;
      case 'J':
        screen_[row_].resize(std::min(column_, screen_[row_].size()));
        for (std::size_t row = row_ + 1; row < rows_; ++row) screen_[row].clear();
        break;
      case 'K': screen_[row_].resize(std::min(column_, screen_[row_].size())); break;
      case 'm': coloured_ = true; break;
      default: EXPECT_EQ(argument, "?7"); wraps_ = bytes[end] == 'h';
    }
    return end + 1;
  }

  void put(char c) {
    if (column_ == columns_) {
      if (wraps_) {
        column_ = 0;
        line_feed();
      } else {
        column_ = columns_ - 1;
      }
    }
    std::string& line = screen_[row_];
    if (line.size() <= column_) line.resize(column_ + 1, ' ');
    line[column_++] = c;
  }

  void line_feed() {
    if (++row_ < rows_) return;
    row_ = rows_ - 1;
    scrolled_.push_back(screen_.front());
    screen_.erase(screen_.begin());
    screen_.emplace_back();
  }

  std::size_t columns_;
  std::size_t rows_;
  std::vector<std::string> screen_;
  std::vector<std::string> scrolled_;
  std::string pending_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  bool wraps_ = true;
  bool coloured_ = false;
};

}  // namespace ddprun::testing_support
