#include "server/rendezvous_service.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace ithaca::server {
namespace {

using Answer = std::optional<absl::StatusOr<std::string>>;

RendezvousService::GetCallback Into(Answer* answer) {
  return [answer](absl::StatusOr<std::string> value) {
    ASSERT_FALSE(answer->has_value()) << "answered twice";
    *answer = std::move(value);
  };
}

TEST(RendezvousServiceTest, GetOfASetKeyAnswersAtOnce) {
  RendezvousService store;
  store.Open("a");
  ASSERT_TRUE(store.Set("a", "key", std::string("v\0w", 3)).ok());
  Answer answer;
  store.Get("a", "key", Into(&answer));
  ASSERT_TRUE(answer.has_value());
  ASSERT_TRUE(answer->ok());
  EXPECT_EQ(**answer, std::string("v\0w", 3));
}

TEST(RendezvousServiceTest, GetWaitsForItsOwnKeyInItsOwnAttempt) {
  RendezvousService store;
  store.Open("a");
  store.Open("b");
  Answer answer;
  store.Get("a", "key", Into(&answer));
  ASSERT_TRUE(store.Set("b", "key", "of b").ok());
  ASSERT_TRUE(store.Set("a", "other", "not it").ok());
  EXPECT_FALSE(answer.has_value());
  ASSERT_TRUE(store.Set("a", "key", "of a").ok());
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(**answer, "of a");
}

TEST(RendezvousServiceTest, EveryWaiterOfAKeyIsAnswered) {
  RendezvousService store;
  store.Open("a");
  Answer first, second;
  store.Get("a", "key", Into(&first));
  store.Get("a", "key", Into(&second));
  ASSERT_TRUE(store.Set("a", "key", "v").ok());
  EXPECT_EQ(**first, "v");
  EXPECT_EQ(**second, "v");
}

TEST(RendezvousServiceTest, AnEndedAttemptRefusesAndReleasesWaiters) {
  RendezvousService store;
  store.Open("a");
  Answer waiting;
  store.Get("a", "key", Into(&waiting));
  store.Close("a");
  ASSERT_TRUE(waiting.has_value());
  EXPECT_EQ(waiting->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store.Set("a", "key", "v").code(),
            absl::StatusCode::kFailedPrecondition);
  Answer late;
  store.Get("a", "key", Into(&late));
  EXPECT_EQ(late->status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RendezvousServiceTest, CloseAllEndsEveryAttempt) {
  RendezvousService store;
  store.Open("a");
  store.Open("b");
  Answer a, b;
  store.Get("a", "key", Into(&a));
  store.Get("b", "key", Into(&b));
  store.CloseAll();
  ASSERT_TRUE(a.has_value());
  ASSERT_TRUE(b.has_value());
  EXPECT_EQ(a->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(b->status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RendezvousServiceTest, AnAttemptNeverOpenedIsRefused) {
  RendezvousService store;
  EXPECT_EQ(store.Set("x", "key", "v").code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(RendezvousServiceTest, ACancelledWaiterIsNeverAnswered) {
  RendezvousService store;
  store.Open("a");
  Answer answer;
  auto id = store.Get("a", "key", Into(&answer));
  EXPECT_TRUE(store.Cancel(id));
  EXPECT_FALSE(store.Cancel(id));
  ASSERT_TRUE(store.Set("a", "key", "v").ok());
  EXPECT_FALSE(answer.has_value());
}

TEST(RendezvousServiceTest, CancellingAnAnsweredWaiterSaysSo) {
  RendezvousService store;
  store.Open("a");
  Answer answer;
  auto id = store.Get("a", "key", Into(&answer));
  ASSERT_TRUE(store.Set("a", "key", "v").ok());
  EXPECT_FALSE(store.Cancel(id));
}

TEST(RendezvousServiceTest, AnAttemptHoldsABoundedNumberOfBytes) {
  RendezvousService store;
  store.Open("a");
  const std::string half(RendezvousService::kMaxAttemptBytes / 2, 'x');
  ASSERT_TRUE(store.Set("a", "k", half).ok());
  EXPECT_EQ(store.Set("a", "l", half).code(),
            absl::StatusCode::kResourceExhausted);
  // Replacing a value counts it once.
  EXPECT_TRUE(store.Set("a", "k", half).ok());
}

}  // namespace
}  // namespace ithaca::server
