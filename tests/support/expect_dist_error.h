// EXPECT_DIST_ERROR: a statement throws a DistError of one kind, with words that a matcher accepts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/error.h"

#define EXPECT_DIST_ERROR(statement, expected_kind, words)                        \
  do {                                                                            \
    try {                                                                         \
      statement;                                                                  \
      ADD_FAILURE() << #statement " threw nothing";                               \
    } catch (const ::ddprun::DistError& error_) {                                 \
      EXPECT_EQ(static_cast<int>(error_.kind()), static_cast<int>(expected_kind)) \
          << error_.what();                                                       \
      EXPECT_THAT(error_.what(), words);                                          \
    }                                                                             \
  } while (false)
