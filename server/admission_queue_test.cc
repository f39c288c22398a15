#include "server/admission_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/pending_call.h"
#include "server/status_mapping.h"

namespace ithaca::server {
namespace {

std::shared_ptr<PendingCall> Call(const std::string& id) {
  auto call = std::make_shared<PendingCall>([](absl::StatusOr<CallOutcome>) {});
  call->request_id = id;
  return call;
}

TEST(AdmissionQueueTest, FirstComeFirstServedAndRetriedCallsBeforeAll) {
  AdmissionQueue queue(10);
  ASSERT_TRUE(queue.Push(Call("a")).ok());
  ASSERT_TRUE(queue.Push(Call("b")).ok());
  queue.PushFront(Call("retried"));
  EXPECT_EQ(queue.size(), 3);
  EXPECT_EQ(queue.Pop("g", 1)->request_id, "retried");
  EXPECT_EQ(queue.Pop("g", 1)->request_id, "a");
  EXPECT_EQ(queue.Pop("g", 1)->request_id, "b");
  EXPECT_EQ(queue.Pop("g", 1), nullptr);
}

TEST(AdmissionQueueTest, AFullQueueRefusesWithARetryHint) {
  AdmissionQueue queue(2);
  ASSERT_TRUE(queue.Push(Call("a")).ok());
  ASSERT_TRUE(queue.Push(Call("b")).ok());
  const absl::Status status = queue.Push(Call("c"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryHint(status).has_value());
  queue.Pop("g", 1);
  EXPECT_TRUE(queue.Push(Call("c")).ok());
}

TEST(AdmissionQueueTest, ARemovedCallIsNeverPopped) {
  AdmissionQueue queue(10);
  const auto a = Call("a");
  const auto b = Call("b");
  ASSERT_TRUE(queue.Push(a).ok());
  ASSERT_TRUE(queue.Push(b).ok());
  EXPECT_TRUE(queue.Remove(*a));
  EXPECT_FALSE(queue.Remove(*a));
  EXPECT_EQ(queue.Pop("g", 1), b);
  EXPECT_FALSE(queue.Remove(*b));
}

TEST(AdmissionQueueTest, TakingAllEmptiesItInOrder) {
  AdmissionQueue queue(10);
  ASSERT_TRUE(queue.Push(Call("a")).ok());
  ASSERT_TRUE(queue.Push(Call("b")).ok());
  const auto all = queue.TakeAll();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]->request_id, "a");
  EXPECT_EQ(queue.size(), 0);
}

TEST(AdmissionQueueTest, ABoundCallWaitsForItsGroupAndHoldsUpNobody) {
  AdmissionQueue queue(10);
  const auto bound = Call("bound");
  bound->group = "g1";
  bound->generation = 7;
  ASSERT_TRUE(queue.Push(bound).ok());
  ASSERT_TRUE(queue.Push(Call("free")).ok());
  EXPECT_EQ(queue.Pop("g2", 7)->request_id, "free");
  EXPECT_EQ(queue.Pop("g2", 7), nullptr);
  EXPECT_EQ(queue.Pop("g1", 8), nullptr);
  EXPECT_EQ(queue.Pop("g1", 7), bound);
}

TEST(AdmissionQueueTest, AFullQueueStillTakesABoundCall) {
  AdmissionQueue queue(1);
  ASSERT_TRUE(queue.Push(Call("a")).ok());
  const auto bound = Call("bound");
  bound->group = "g1";
  EXPECT_TRUE(queue.Push(bound).ok());
  EXPECT_FALSE(queue.Push(Call("b")).ok());
}

TEST(PendingCallTest, EndsOnceAndGivesItsBytesBackBeforeItsEndIsHeardOf) {
  ByteBudget budget(100);
  int ends = 0;
  int64_t reserved_at_end = -1;
  PendingCall call([&](absl::StatusOr<CallOutcome> outcome) {
    ++ends;
    reserved_at_end = budget.reserved();
    EXPECT_EQ(outcome.status().code(), absl::StatusCode::kUnavailable);
  });
  call.reservation = *budget.Reserve(40);
  call.Finish(absl::UnavailableError("first"));
  call.Finish(absl::InternalError("second"));
  EXPECT_TRUE(call.ended());
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(reserved_at_end, 0);
}

TEST(PendingCallTest, AnAbandonedCallKeepsItsBytesUntilTheRanksAreDone) {
  ByteBudget budget(100);
  PendingCall call([](absl::StatusOr<CallOutcome>) {});
  call.reservation = *budget.Reserve(40);
  call.Abandon(absl::CancelledError("gone"));
  EXPECT_EQ(budget.reserved(), 40);
  call.Finish(CallOutcome());
  EXPECT_EQ(budget.reserved(), 0);
}

}  // namespace
}  // namespace ithaca::server
