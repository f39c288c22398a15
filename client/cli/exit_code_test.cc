#include "client/cli/exit_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace ithaca::client {
namespace {

using ::testing::HasSubstr;

TEST(ExitCodeTest, WhatMayPassIsToldFromWhatWillNot) {
  std::ostringstream err;
  EXPECT_EQ(ReportCallError(absl::UnavailableError("no ready group"), err),
            kTryLater);
  EXPECT_EQ(ReportCallError(absl::ResourceExhaustedError("queue full"), err),
            kTryLater);
  EXPECT_EQ(ReportCallError(absl::DeadlineExceededError("late"), err),
            kTryLater);
  EXPECT_EQ(ReportCallError(absl::InvalidArgumentError("key.shape"), err),
            kRefused);
  EXPECT_EQ(ReportCallError(absl::InternalError("bug"), err), kRefused);
}

TEST(ExitCodeTest, MessageNamesCodeAndWhatToDo) {
  std::ostringstream err;
  ReportCallError(absl::UnauthenticatedError("no token"), err);
  EXPECT_THAT(err.str(), HasSubstr("ithaca: UNAUTHENTICATED: no token\n"));
  EXPECT_THAT(err.str(), HasSubstr("--token"));
}

}  // namespace
}  // namespace ithaca::client
