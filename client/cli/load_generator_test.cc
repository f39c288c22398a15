#include "client/cli/load_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "client/cli/random_call.h"
#include "client/fake_attention_service.h"

namespace ithaca::client {
namespace {

class LoadGeneratorTest : public ::testing::Test {
 protected:
  LoadResult Run(FakeAttentionService::AttentionFunction attention,
                 const LoadOptions& options) {
    FakeAttentionService service(std::move(attention), {.shared_memory = true});
    auto client = Client::Connect({.address = service.address()});
    EXPECT_TRUE(client.ok()) << client.status();
    const auto call =
        MakeRandomCall(FindNamedShape("tiny")->Shape(), 1, 1 << 20);
    return RunLoad(client->get(), *call, options,
                   [this](const LoadProgress& p) { last_progress_ = p; });
  }

  LoadProgress last_progress_;
};

TEST_F(LoadGeneratorTest, MakesExactlyTheCallsAskedFor) {
  for (const int concurrency : {1, 3, 16}) {
    std::atomic<int> seen = 0;
    const LoadResult result = Run(
        [&seen](auto* context, const auto& request, auto* response) {
          ++seen;
          return FakeAttentionService::Echo(context, request, response);
        },
        {.concurrency = concurrency, .calls = 40});
    EXPECT_EQ(result.samples.size(), 40u);
    EXPECT_EQ(seen, 40);
    EXPECT_EQ(result.NumFailures(), 0);
    EXPECT_GT(result.seconds, 0);
    EXPECT_EQ(result.samples[0].report.stage_seconds().at("attention"), 5e-4);
    for (const CallSample& sample : result.samples) {
      EXPECT_GT(sample.client_seconds, 0);
      EXPECT_LE(sample.client_seconds, result.seconds);
    }
  }
}

TEST_F(LoadGeneratorTest, KeepsSoManyCallsInFlightAndNoMore) {
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  Run(
      [&](auto* context, const auto& request, auto* response) {
        const int now = ++running;
        int before = most;
        while (before < now && !most.compare_exchange_weak(before, now)) {
        }
        absl::SleepFor(absl::Milliseconds(20));
        --running;
        return FakeAttentionService::Echo(context, request, response);
      },
      {.concurrency = 2, .calls = 12});
  EXPECT_LE(most, 2);
  EXPECT_GE(most, 1);
}

TEST_F(LoadGeneratorTest, AllocatedTensorsTravelBySharedMemory) {
  for (const bool allocated : {false, true}) {
    const LoadResult result =
        Run(FakeAttentionService::Echo,
            {.concurrency = 2, .calls = 4, .allocated = allocated});
    ASSERT_EQ(result.samples.size(), 4u) << result.first_failure;
    EXPECT_EQ(result.samples[0].plane,
              allocated ? Plane::kSharedMemory : Plane::kUnary);
  }
}

TEST_F(LoadGeneratorTest, DurationEndsTheRun) {
  const LoadResult result =
      Run(FakeAttentionService::Echo,
          {.concurrency = 2, .duration = absl::Milliseconds(300)});
  EXPECT_GT(result.samples.size(), 0u);
  EXPECT_GE(result.seconds, 0.3);
  EXPECT_GT(last_progress_.fraction, 0);
}

TEST_F(LoadGeneratorTest, FailuresAreCountedByCodeAndEndTheRun) {
  std::atomic<int> seen = 0;
  const LoadResult result = Run(
      [&seen](auto* context, const auto& request, auto* response) {
        if (++seen == 1) {
          return FakeAttentionService::Echo(context, request, response);
        }
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
      },
      {.concurrency = 1, .calls = 1000, .max_failures = 4});
  EXPECT_EQ(result.samples.size(), 1u);
  EXPECT_EQ(result.failures.at(absl::StatusCode::kUnavailable), 4);
  EXPECT_EQ(result.first_failure.message(), "gone");
  EXPECT_EQ(seen, 5);
}

}  // namespace
}  // namespace ithaca::client
