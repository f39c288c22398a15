#include "client/attention_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "client/fake_attention_service.h"

namespace ithaca::client {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

Tensor Filled(std::vector<int64_t> shape, int seed) {
  Tensor tensor(v1::DATA_TYPE_FLOAT32, std::move(shape));
  auto* numbers = reinterpret_cast<float*>(tensor.bytes().data());
  for (size_t i = 0; i < tensor.bytes().size() / sizeof(float); ++i) {
    numbers[i] = static_cast<float>(seed) + 0.5f * static_cast<float>(i % 97);
  }
  return tensor;
}

bool Same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.bytes().size() == b.bytes().size() &&
         std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
}

AttentionArguments Call(const Tensor& tensor) {
  return {.query = tensor.view(),
          .key = tensor.view(),
          .value = tensor.view(),
          .deadline = absl::Now() + kLong};
}

std::unique_ptr<Client> ConnectTo(const FakeAttentionService& service,
                                  ClientOptions options = {}) {
  options.address = service.address();
  options.connect_timeout = kLong;
  auto client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

TEST(AttentionClientTest, OutputAndReportComeBack) {
  FakeAttentionService service;
  const auto client = ConnectTo(service);
  const Tensor tensor = Filled({1, 64, 8, 64}, 3);
  AttentionArguments arguments = Call(tensor);
  arguments.request_id = "mine";
  const auto result = client->Attention(arguments);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->request_id, "mine");
  EXPECT_TRUE(Same(result->output, tensor));
  EXPECT_EQ(result->report.world_size(), 2);
  EXPECT_EQ(result->report.stage_seconds().at("attention"), 5e-4);
}

TEST(AttentionClientTest, MessagesAboveGrpcsDefaultLimitPassBothWays) {
  FakeAttentionService service;
  const auto client = ConnectTo(service);
  const Tensor tensor = Filled({1, 4096, 4, 128}, 5);  // 8 MiB, three times
  std::vector<std::byte> mine(tensor.bytes().size());
  AttentionArguments arguments = Call(tensor);
  arguments.output = mine;
  const auto result = client->Attention(arguments);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output.bytes().data(), mine.data());
  EXPECT_TRUE(Same(result->output, tensor));
}

TEST(AttentionClientTest, RequestAboveTheLimitIsRefusedAndTheNextCallWorks) {
  FakeAttentionService service;
  const auto client = ConnectTo(
      service, {.max_message_bytes = int64_t{1} << 20, .plane = Plane::kUnary});
  const auto refused = client->Attention(Call(Filled({1, 1024, 4, 128}, 1)));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(client->Attention(Call(Filled({1, 16, 4, 128}, 1))).ok());
}

TEST(AttentionClientTest, OutputOfAnotherSizeIsRefused) {
  FakeAttentionService service;
  const auto client = ConnectTo(service);
  const Tensor tensor = Filled({1, 2, 2, 8}, 1);
  std::vector<std::byte> mine(tensor.bytes().size() - 1);
  AttentionArguments arguments = Call(tensor);
  arguments.output = mine;
  const auto result = client->Attention(arguments);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(result.status().message(), HasSubstr("expected 128 bytes"));
}

TEST(AttentionClientTest, ServersCodeMessageAndRetryHintArrive) {
  FakeAttentionService service([](grpc::CallbackServerContext* context,
                                  const v1::AttentionRequest&,
                                  v1::AttentionResponse*) {
    context->AddTrailingMetadata("ithaca-retry-after-ms", "250");
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no ready group");
  });
  const auto client = ConnectTo(service);
  const auto result = client->Attention(Call(Filled({1, 2, 2, 8}, 1)));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(result.status().message(), "no ready group");
  EXPECT_EQ(RetryAfter(result.status()), absl::Milliseconds(250));
}

TEST(AttentionClientTest, ErrorWithoutAHintHasNone) {
  FakeAttentionService service([](grpc::CallbackServerContext*,
                                  const v1::AttentionRequest&,
                                  v1::AttentionResponse*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "key.dtype");
  });
  const auto client = ConnectTo(service);
  const auto result = client->Attention(Call(Filled({1, 2, 2, 8}, 1)));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RetryAfter(result.status()), std::nullopt);
}

TEST(AttentionClientTest, TokenIsSent) {
  std::string seen;
  FakeAttentionService service([&seen](grpc::CallbackServerContext* context,
                                       const v1::AttentionRequest& request,
                                       v1::AttentionResponse* response) {
    const auto& metadata = context->client_metadata();
    const auto entry = metadata.find("authorization");
    if (entry != metadata.end()) {
      seen.assign(entry->second.data(), entry->second.size());
    }
    return FakeAttentionService::Echo(context, request, response);
  });
  const auto client = ConnectTo(service, {.token = "s3cret"});
  ASSERT_TRUE(client->Attention(Call(Filled({1, 2, 2, 8}, 1))).ok());
  EXPECT_EQ(seen, "Bearer s3cret");
}

TEST(AttentionClientTest, PassedDeadlineEndsTheCall) {
  FakeAttentionService service;
  const auto client = ConnectTo(service);
  const Tensor tensor = Filled({1, 2048, 4, 128}, 1);
  AttentionArguments arguments = Call(tensor);
  arguments.deadline = absl::Now() - absl::Seconds(1);
  EXPECT_EQ(client->Attention(arguments).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(AttentionClientTest, CancelFreesTheCallerWhileTheServerWorks) {
  absl::Notification entered;
  absl::Notification leave;
  FakeAttentionService service([&](grpc::CallbackServerContext* context,
                                   const v1::AttentionRequest& request,
                                   v1::AttentionResponse* response) {
    entered.Notify();
    leave.WaitForNotification();
    return FakeAttentionService::Echo(context, request, response);
  });
  const auto client = ConnectTo(service);
  const Tensor tensor = Filled({1, 64, 8, 64}, 1);
  absl::Notification ended;
  absl::Status status;
  const auto call = client->AttentionAsync(
      Call(tensor), [&](const absl::StatusOr<AttentionResult>& result) {
        status = result.status();
        ended.Notify();
      });
  entered.WaitForNotification();
  call->Cancel();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  leave.Notify();
}

TEST(AttentionClientTest, CallbackMayStartTheNextCall) {
  FakeAttentionService service;
  const auto client = ConnectTo(service);
  const Tensor tensor = Filled({1, 64, 8, 64}, 1);
  constexpr int kCalls = 50;
  int made = 0;
  absl::Notification all;
  std::function<void()> next = [&] {
    client->AttentionAsync(Call(tensor),
                           [&](const absl::StatusOr<AttentionResult>& result) {
                             EXPECT_TRUE(result.ok()) << result.status();
                             if (++made == kCalls) {
                               all.Notify();
                             } else {
                               next();
                             }
                           });
  };
  next();
  EXPECT_TRUE(all.WaitForNotificationWithTimeout(kLong));
}

TEST(AttentionClientTest, ThreadsGetTheirOwnAnswersOverSeveralConnections) {
  FakeAttentionService service;
  const auto client = ConnectTo(service, {.connections = 3});
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&client, t] {
      for (int i = 0; i < 20; ++i) {
        const Tensor tensor = Filled({1, 8 + t, 4, 64}, 100 * t + i);
        const auto result = client->Attention(Call(tensor));
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_TRUE(Same(result->output, tensor));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(AttentionClientTest, OwnersAreReleasedAndKeepTheBytesUntilThen) {
  FakeAttentionService service;
  const auto client = ConnectTo(service);
  std::weak_ptr<const void> watched;
  absl::Notification ended;
  {
    const Tensor tensor = Filled({1, 512, 8, 64}, 9);
    AttentionArguments arguments = Call(tensor);
    watched = arguments.query.owner;
    client->AttentionAsync(arguments,
                           [&](const absl::StatusOr<AttentionResult>& result) {
                             EXPECT_TRUE(result.ok()) << result.status();
                             ended.Notify();
                           });
  }
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
  const absl::Time limit = absl::Now() + kLong;
  while (!watched.expired() && absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(watched.expired());
}

// The memory is freed as soon as the call says it has ended, however it ends:
// under a sanitizer a late reader in the transport is seen.
TEST(AttentionClientTest, BorrowedBytesAreFreeOnceACancelledCallEnds) {
  FakeAttentionService service;
  const auto client = ConnectTo(service);
  for (int i = 0; i < 40; ++i) {
    auto tensor = std::make_unique<Tensor>(Filled({1, 2048, 4, 128}, i));
    AttentionArguments arguments = Call(*tensor);
    for (TensorView* view :
         {&arguments.query, &arguments.key, &arguments.value}) {
      view->owner = nullptr;
    }
    absl::Notification ended;
    const auto call = client->AttentionAsync(
        arguments,
        [&](const absl::StatusOr<AttentionResult>&) { ended.Notify(); });
    absl::SleepFor(absl::Microseconds(i * 300));
    call->Cancel();
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
    tensor.reset();
  }
  EXPECT_TRUE(client->Attention(Call(Filled({1, 2, 2, 8}, 1))).ok());
}

TEST(AttentionClientTest, NobodyAtTheAddressIsUnavailable) {
  const auto client = Client::Connect(
      {.address = "127.0.0.1:1", .connect_timeout = absl::Milliseconds(300)});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(client.status().message(), HasSubstr("127.0.0.1:1"));
}

TEST(AttentionClientTest, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(Client::Connect({.address = ""}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Client::Connect({.max_message_bytes = int64_t{1} << 31}).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Client::Connect({.plane = Plane::kCudaMemory}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Client::Connect({.connections = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(AttentionClientTest, ServerInfoAndHealth) {
  FakeAttentionService service;
  const auto client = ConnectTo(service);
  const auto info = client->GetServerInfo(absl::Now() + kLong);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->groups(0).state(), "ready");
  const auto serving = client->IsServing("", absl::Now() + kLong);
  ASSERT_TRUE(serving.ok()) << serving.status();
  EXPECT_TRUE(*serving);
  EXPECT_EQ(client->IsServing("nobody", absl::Now() + kLong).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ithaca::client
