// Runs the ranks of a world as threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace ddprun::testing_support {

// Runs body(rank) for all ranks at the same time. Returns what() of each rank's exception; empty
// if it threw none.
template <class Body>
std::vector<std::string> errors_of_ranks(int size, const Body& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([rank, &body, &error = errors[static_cast<std::size_t>(rank)]] {
      try {
        body(rank);
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void expect_no_errors(const std::vector<std::string>& errors) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_EQ(errors[rank], "") << "on rank " << rank;
  }
}

// As errors_of_ranks(), but an exception of a rank fails the test.
template <class Body>
void run_ranks(int size, const Body& body) {
  expect_no_errors(errors_of_ranks(size, body));
}

}  // namespace ddprun::testing_support
