#include "server/in_flight_requests.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace ithaca::server {
namespace {

TEST(InFlightRequestsTest, ASecondRequestWithAnIdInFlightIsRefused) {
  InFlightRequests requests;
  auto first = requests.Register("x");
  ASSERT_TRUE(first.ok());
  const auto second = requests.Register("x");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find("\"x\""), absl::string_view::npos);
  EXPECT_TRUE(requests.Register("y").ok());
}

TEST(InFlightRequestsTest, AnIdMayBeUsedAgainAfterItsEnd) {
  InFlightRequests requests;
  { const auto first = requests.Register("x"); }
  auto second = requests.Register("x");
  ASSERT_TRUE(second.ok());
  second->Release();
  second->Release();
  EXPECT_EQ(second->id(), "x");
  EXPECT_TRUE(requests.Register("x").ok());
}

TEST(InFlightRequestsTest, ARefusedSecondDoesNotFreeTheFirst) {
  InFlightRequests requests;
  auto first = requests.Register("x");
  { const auto second = requests.Register("x"); }
  EXPECT_FALSE(requests.Register("x").ok());
}

TEST(InFlightRequestsTest, AMovedRegistrationHoldsItsId) {
  InFlightRequests requests;
  auto first = requests.Register("x");
  InFlightRequests::Registration moved = *std::move(first);
  EXPECT_EQ(moved.id(), "x");
  EXPECT_FALSE(requests.Register("x").ok());
  moved = InFlightRequests::Registration();
  EXPECT_TRUE(requests.Register("x").ok());
}

TEST(InFlightRequestsTest, RequestsWithoutAnIdGetDifferentOnes) {
  InFlightRequests requests;
  const auto first = requests.Register("");
  const auto second = requests.Register("");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->id().size(), 32u);
  EXPECT_NE(first->id(), second->id());
}

TEST(InFlightRequestsTest, OfManyAtOnceWithOneIdExactlyOneIsTaken) {
  InFlightRequests requests;
  std::vector<InFlightRequests::Registration> held(8);
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  threads.reserve(held.size());
  for (auto& slot : held) {
    threads.emplace_back([&requests, &taken, &slot] {
      auto registration = requests.Register("x");
      if (registration.ok()) {
        ++taken;
        slot = *std::move(registration);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(taken, 1);
}

}  // namespace
}  // namespace ithaca::server
