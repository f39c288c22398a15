#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/attention_client.h"
#include "client/fake_attention_service.h"
#include "client/fake_memory_service.h"

// The client by each plane: what travels how, and what happens when it can't.

namespace ithaca::client {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

Tensor Filled(std::vector<int64_t> shape, int seed) {
  Tensor tensor(v1::DATA_TYPE_FLOAT32, std::move(shape));
  auto* numbers = reinterpret_cast<float*>(tensor.bytes().data());
  for (size_t i = 0; i < tensor.bytes().size() / sizeof(float); ++i) {
    numbers[i] = static_cast<float>(seed) + 0.5f * static_cast<float>(i % 9973);
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

size_t EntriesOf(const char* folder, const std::string& prefix) {
  size_t count = 0;
  DIR* stream = opendir(folder);
  while (const dirent* entry = readdir(stream)) {
    count += absl::StartsWith(entry->d_name, prefix) ? 1 : 0;
  }
  closedir(stream);
  return count;
}

size_t OpenFiles() { return EntriesOf("/proc/self/fd", ""); }
size_t SharedObjects() {
  return EntriesOf("/dev/shm", absl::StrCat("ithaca-", getpid(), "-"));
}

bool AwaitTrue(const std::function<bool()>& condition) {
  const absl::Time limit = absl::Now() + kLong;
  while (!condition() && absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return condition();
}

// A service that echoes, and a client of it.
class ClientPlanesTest : public ::testing::Test {
 protected:
  void Serve(FakeAttentionService::Options options,
             FakeAttentionService::AttentionFunction attention =
                 FakeAttentionService::Echo) {
    service_ =
        std::make_unique<FakeAttentionService>(std::move(attention), options);
  }

  void ConnectBy(Plane plane) {
    auto client = Client::Connect({
        .address = service_->address(),
        .connect_timeout = kLong,
        .plane = plane,
        .on_fallback =
            [this](const std::string& note) {
              const std::lock_guard lock(mutex_);
              notes_.push_back(note);
            },
    });
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  // One echo; the plane it took.
  void Echo(const Tensor& tensor, Plane plane) {
    const auto result = client_->Attention(Call(tensor));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(Same(result->output, tensor));
    EXPECT_EQ(Name(result->plane), Name(plane)) << result->plane_note;
  }

  FakeMemoryService& memory() { return service_->memory(); }

  std::mutex mutex_;
  std::vector<std::string> notes_;
  std::unique_ptr<FakeAttentionService> service_;
  std::unique_ptr<Client> client_;
};

const Tensor& Small() {
  static const Tensor tensor = Filled({1, 16, 4, 32}, 1);  // 8 KiB
  return tensor;
}

const Tensor& Large() {
  static const Tensor tensor = Filled({1, 5000, 4, 128}, 2);  // 9.8 MiB
  return tensor;
}

TEST_F(ClientPlanesTest, AutoTakesTheConnectionWhereThereIsNoSharedMemory) {
  Serve({});
  ConnectBy(Plane::kAuto);
  Echo(Small(), Plane::kUnary);
  Echo(Large(), Plane::kStream);
  EXPECT_TRUE(notes_.empty());
  EXPECT_EQ(memory().leases(), 0);
}

TEST_F(ClientPlanesTest, AutoStreamsWhatTheServersMessagesDoNotHold) {
  Serve({.max_message_bytes = uint64_t{1} << 20});
  ConnectBy(Plane::kAuto);
  Echo(Filled({1, 1000, 4, 128}, 3), Plane::kStream);
}

TEST_F(ClientPlanesTest, AutoTakesSharedMemoryAndUsesItAgain) {
  Serve({.shared_memory = true});
  ConnectBy(Plane::kAuto);
  Echo(Small(), Plane::kUnary);
  for (int i = 0; i < 5; ++i) {
    Echo(Filled({1, 5000, 4, 128}, i), Plane::kSharedMemory);
  }
  EXPECT_EQ(memory().registrations(), 1);
  EXPECT_TRUE(notes_.empty());
}

TEST_F(ClientPlanesTest, EveryPlaneFillsTheCallersOutput) {
  Serve({.shared_memory = true});
  for (const Plane plane :
       {Plane::kUnary, Plane::kStream, Plane::kSharedMemory}) {
    ConnectBy(plane);
    std::vector<std::byte> mine(Large().bytes().size());
    AttentionArguments arguments = Call(Large());
    arguments.output = mine;
    arguments.request_id = "mine";
    const auto result = client_->Attention(arguments);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->plane, plane);
    EXPECT_EQ(result->output.bytes().data(), mine.data());
    EXPECT_EQ(result->request_id, "mine");
    EXPECT_EQ(result->report.world_size(), 2u);
    EXPECT_TRUE(Same(result->output, Large()));
  }
}

TEST_F(ClientPlanesTest, SharedMemoryThatIsOffFallsBackAndIsToldOnce) {
  Serve({});
  ConnectBy(Plane::kSharedMemory);
  Echo(Large(), Plane::kStream);
  Echo(Small(), Plane::kUnary);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_THAT(notes_[0], HasSubstr("disabled"));
}

TEST_F(ClientPlanesTest, ARefusedRegistrationFallsBackAndSaysWhy) {
  Serve({.shared_memory = true});
  memory().RefuseWith({grpc::StatusCode::FAILED_PRECONDITION, "another host"});
  ConnectBy(Plane::kAuto);
  for (int i = 0; i < 3; ++i) Echo(Large(), Plane::kStream);
  const auto result = client_->Attention(Call(Large()));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->plane_note, "another host");
  EXPECT_EQ(notes_, std::vector<std::string>{"another host"});
  EXPECT_EQ(SharedObjects(), 0u);
}

TEST_F(ClientPlanesTest, MemoryThatAWorkerCannotReachFallsBackToo) {
  std::atomic<int> calls = 0;
  Serve({.shared_memory = true}, [&calls](grpc::CallbackServerContext* context,
                                          const v1::AttentionRequest& request,
                                          v1::AttentionResponse* response) {
    if (calls++ == 0) {
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                          "rank 1: another container");
    }
    return FakeAttentionService::Echo(context, request, response);
  });
  ConnectBy(Plane::kAuto);
  Echo(Large(), Plane::kStream);
  Echo(Large(), Plane::kStream);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(notes_, std::vector<std::string>{"rank 1: another container"});
}

TEST_F(ClientPlanesTest, AllocatedTensorsAreNotCopied) {
  Serve({.shared_memory = true});
  ConnectBy(Plane::kAuto);
  const auto allocate = [&](const Tensor& like) {
    auto tensor = client_->AllocateTensor(like.dtype(), like.shape(),
                                          absl::Now() + kLong);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_NE(tensor->region().region, nullptr);
    std::memcpy(tensor->bytes().data(), like.bytes().data(),
                like.bytes().size());
    return *std::move(tensor);
  };
  const Tensor query = allocate(Large());
  const Tensor key = allocate(Large());
  const Tensor output = allocate(Filled(Large().shape(), 77));
  EXPECT_EQ(memory().regions(), 3);
  AttentionArguments arguments{.query = query.view(),
                               .key = key.view(),
                               .value = key.view(),
                               .deadline = absl::Now() + kLong};
  arguments.output_region = output.region();
  const auto result = client_->Attention(arguments);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plane, Plane::kSharedMemory);
  EXPECT_EQ(result->output.bytes().data(), output.bytes().data());
  EXPECT_TRUE(Same(output, Large()));
  // No region beside theirs was needed.
  EXPECT_EQ(memory().registrations(), 3);
}

TEST_F(ClientPlanesTest, AnAllocatedTensorMayGoWithOrdinaryOnes) {
  Serve({.shared_memory = true});
  ConnectBy(Plane::kAuto);
  auto query = client_->AllocateTensor(Large().dtype(), Large().shape(),
                                       absl::Now() + kLong);
  ASSERT_TRUE(query.ok());
  std::memcpy(query->bytes().data(), Large().bytes().data(),
              Large().bytes().size());
  AttentionArguments arguments = Call(Filled(Large().shape(), 5));
  arguments.query = query->view();
  const auto result = client_->Attention(arguments);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(Same(result->output, Large()));
}

TEST_F(ClientPlanesTest, AllocatedTensorsAreOrdinaryWithoutSharedMemory) {
  Serve({});
  ConnectBy(Plane::kAuto);
  auto tensor = client_->AllocateTensor(v1::DATA_TYPE_FLOAT32, {1, 2, 2, 8},
                                        absl::Now() + kLong);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->region().region, nullptr);
  EXPECT_EQ(tensor->bytes().size(), 128u);
  EXPECT_EQ(notes_.size(), 1u);
  EXPECT_EQ(
      client_
          ->AllocateTensor(v1::DATA_TYPE_FLOAT32, {1, -2}, absl::Now() + kLong)
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientPlanesTest, TensorsOfAGpuTravelByTheirRegion) {
  Serve({.shared_memory = true}, [](grpc::CallbackServerContext*,
                                    const v1::AttentionRequest& request,
                                    v1::AttentionResponse* response) {
    response->mutable_output()->set_dtype(request.query().dtype());
    *response->mutable_output()->mutable_shape() = request.query().shape();
    return request.output().offset() == 4096 &&
                   request.key().memory().byte_size() == 1024
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "");
  });
  ConnectBy(Plane::kAuto);
  const auto region =
      client_->RegisterCudaMemory({.ipc_handle = std::string(64, 'h'),
                                   .device_uuid = "GPU-0",
                                   .byte_size = 8192},
                                  absl::Now() + kLong);
  ASSERT_TRUE(region.ok()) << region.status();
  const TensorView view{.dtype = v1::DATA_TYPE_FLOAT32,
                        .shape = {1, 4, 2, 32},
                        .region = {*region, 1024}};
  AttentionArguments arguments{
      .query = view, .key = view, .value = view, .output_region = {*region}};
  arguments.output_region.offset = 4096;
  const auto result = client_->Attention(arguments);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->output.bytes().empty());
  EXPECT_EQ(result->output.region().offset, 4096u);

  arguments.output_region.offset = 8000;
  const auto outside = client_->Attention(arguments);
  EXPECT_EQ(outside.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(outside.status().message(), HasSubstr("output_region"));
}

TEST_F(ClientPlanesTest, CallsInFlightEachHaveMemoryOfTheirOwn) {
  Serve({.shared_memory = true});
  ConnectBy(Plane::kSharedMemory);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 10; ++i) {
        Echo(Filled({1, 300 + 40 * t, 4, 128}, 100 * t + i),
             Plane::kSharedMemory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(memory().regions(), 12);
}

TEST_F(ClientPlanesTest, ALostLeaseIsReplacedWithinTheCall) {
  Serve({.shared_memory = true});
  ConnectBy(Plane::kAuto);
  auto kept = client_->AllocateTensor(Large().dtype(), Large().shape(),
                                      absl::Now() + kLong);
  ASSERT_TRUE(kept.ok());
  std::memcpy(kept->bytes().data(), Large().bytes().data(),
              Large().bytes().size());
  Echo(Large(), Plane::kSharedMemory);
  for (const bool told : {true, false}) {
    if (told) {
      memory().EndLeases();
      ASSERT_TRUE(AwaitTrue([&] { return memory().leases() == 0; }));
    } else {
      memory().LoseLeases();
    }
    Echo(Large(), Plane::kSharedMemory);
    AttentionArguments arguments = Call(Large());
    arguments.query = kept->view();
    const auto result = client_->Attention(arguments);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(Same(result->output, Large()));
    EXPECT_EQ(result->plane, Plane::kSharedMemory);
  }
  EXPECT_TRUE(notes_.empty());
}

TEST_F(ClientPlanesTest, ServersErrorsComeThroughEveryPlane) {
  Serve({.shared_memory = true},
        [](grpc::CallbackServerContext* context, const v1::AttentionRequest&,
           v1::AttentionResponse*) {
          context->AddTrailingMetadata("ithaca-retry-after-ms", "250");
          return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no ready group");
        });
  for (const Plane plane :
       {Plane::kUnary, Plane::kStream, Plane::kSharedMemory}) {
    ConnectBy(plane);
    const auto result = client_->Attention(Call(Large()));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(result.status().message(), "no ready group");
    EXPECT_EQ(RetryAfter(result.status()), absl::Milliseconds(250));
  }
}

TEST_F(ClientPlanesTest, ABadStreamEndsInAnErrorAndTheNextCallWorks) {
  std::atomic<int> fault = 0;
  Serve({.edit_stream = [&fault](auto* parts) {
    if (fault == 1) std::swap((*parts)[1], (*parts)[2]);
    if (fault == 2) parts->pop_back();
    if (fault == 3) parts->push_back(parts->back());
    if (fault == 4) parts->clear();
  }});
  ConnectBy(Plane::kStream);
  for (int bad = 1; bad <= 4; ++bad) {
    fault = bad;
    EXPECT_EQ(client_->Attention(Call(Large())).status().code(),
              absl::StatusCode::kInternal)
        << bad;
    fault = 0;
    Echo(Large(), Plane::kStream);
  }
}

TEST_F(ClientPlanesTest, PassedDeadlineEndsTheCallOnEveryPlane) {
  Serve({.shared_memory = true});
  for (const Plane plane :
       {Plane::kAuto, Plane::kStream, Plane::kSharedMemory}) {
    ConnectBy(plane);
    AttentionArguments arguments = Call(Large());
    arguments.deadline = absl::Now() - absl::Seconds(1);
    EXPECT_EQ(client_->Attention(arguments).status().code(),
              absl::StatusCode::kDeadlineExceeded);
    Echo(Large(), plane == Plane::kAuto ? Plane::kSharedMemory : plane);
  }
}

// The memory is freed as soon as the call says it has ended, however it ends:
// under a sanitizer a late reader in the transport is seen.
TEST_F(ClientPlanesTest, BorrowedBytesAreFreeOnceACancelledCallEnds) {
  Serve({.shared_memory = true});
  for (const Plane plane : {Plane::kStream, Plane::kSharedMemory}) {
    ConnectBy(plane);
    for (int i = 0; i < 30; ++i) {
      auto tensor = std::make_unique<Tensor>(Filled({1, 3000, 4, 128}, i));
      AttentionArguments arguments = Call(*tensor);
      for (TensorView* view :
           {&arguments.query, &arguments.key, &arguments.value}) {
        view->owner = nullptr;
      }
      absl::Notification ended;
      const auto call = client_->AttentionAsync(
          arguments,
          [&](const absl::StatusOr<AttentionResult>&) { ended.Notify(); });
      absl::SleepFor(absl::Microseconds(i * 300));
      call->Cancel();
      ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
      tensor.reset();
    }
    Echo(Large(), plane);
  }
}

TEST_F(ClientPlanesTest, CancelFreesTheCallerWhileTheServerWorks) {
  absl::Notification leave;
  std::atomic<int> entered = 0;
  Serve({.shared_memory = true}, [&](grpc::CallbackServerContext* context,
                                     const v1::AttentionRequest& request,
                                     v1::AttentionResponse* response) {
    ++entered;
    leave.WaitForNotification();
    return FakeAttentionService::Echo(context, request, response);
  });
  ConnectBy(Plane::kSharedMemory);
  absl::Notification ended;
  absl::Status status;
  const auto call = client_->AttentionAsync(
      Call(Large()), [&](const absl::StatusOr<AttentionResult>& result) {
        status = result.status();
        ended.Notify();
      });
  ASSERT_TRUE(AwaitTrue([&] { return entered == 1; }));
  call->Cancel();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  // The workers may still write the memory: it is not used again.
  EXPECT_TRUE(AwaitTrue([&] { return memory().regions() == 0; }));
  leave.Notify();
  Echo(Large(), Plane::kSharedMemory);
}

TEST_F(ClientPlanesTest, CallbackMayStartTheNextCall) {
  Serve({.shared_memory = true});
  for (const Plane plane : {Plane::kStream, Plane::kSharedMemory}) {
    ConnectBy(plane);
    constexpr int kCalls = 30;
    int made = 0;
    absl::Notification all;
    std::function<void()> next = [&] {
      client_->AttentionAsync(
          Call(Small()), [&](const absl::StatusOr<AttentionResult>& result) {
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
}

TEST_F(ClientPlanesTest, ManyCallsLeaveNoFilesAndNoSharedMemory) {
  Serve({.shared_memory = true});
  for (const Plane plane : {Plane::kStream, Plane::kSharedMemory}) {
    ConnectBy(plane);
    for (int i = 0; i < 20; ++i) Echo(Small(), plane);
    const size_t files = OpenFiles();
    for (int i = 0; i < 300; ++i) Echo(Small(), plane);
    EXPECT_LE(OpenFiles(), files + 1);
  }
  EXPECT_EQ(SharedObjects(), 1u);
  client_.reset();
  EXPECT_EQ(SharedObjects(), 0u);
  EXPECT_TRUE(AwaitTrue(
      [&] { return memory().leases() == 0 && memory().regions() == 0; }));
}

}  // namespace
}  // namespace ithaca::client
