// MemoryService with the rest of a server around it: calls that use regions,
// and ranks that are fakes.

#include "server/memory_service.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "server/attention_service.h"
#include "server/fake_group.h"
#include "server/grpc_arguments.h"
#include "server/lease_token.h"
#include "server/mock_group_manager.h"
#include "server/region_access.h"

namespace ithaca::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::NiceMock;
using ::testing::Return;

constexpr int64_t kTokens = 3;
constexpr int64_t kHeads = 2;
constexpr int64_t kDim = 4;
constexpr int64_t kElements = kTokens * kHeads * kDim;
constexpr uint64_t kBytes = kElements * sizeof(float);

void AwaitTrue(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!condition()) {
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// A client's object of four tensors, one after the other: query, key, value,
// output. Query and key are zeros: the output is the mean of the values.
class TensorObject {
 public:
  explicit TensorObject(const std::string& name)
      : name_("/ithaca-" + name + "-" + NewLeaseToken()) {
    const int fd = shm_open(name_.c_str(), O_CREAT | O_RDWR, 0600);
    EXPECT_EQ(ftruncate(fd, 4 * kBytes), 0);
    floats_ = static_cast<float*>(
        mmap(nullptr, 4 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    for (int64_t i = 0; i < kElements; ++i) {
      floats_[2 * kElements + i] = static_cast<float>(i / (kHeads * kDim));
    }
  }
  ~TensorObject() {
    munmap(floats_, 4 * kBytes);
    shm_unlink(name_.c_str());
  }

  const std::string& name() const { return name_; }
  bool Exists() const {
    const int fd = shm_open(name_.c_str(), O_RDONLY, 0);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }
  void Truncate(off_t size) const {
    const int fd = shm_open(name_.c_str(), O_RDWR, 0);
    EXPECT_EQ(ftruncate(fd, size), 0);
    close(fd);
  }
  // The mean of tokens 0, 1 and 2, everywhere.
  void ExpectOutput() const {
    for (int64_t i = 0; i < kElements; ++i) {
      ASSERT_FLOAT_EQ(floats_[3 * kElements + i], 1.0F) << i;
    }
  }
  void ClearOutput() { std::fill_n(floats_ + 3 * kElements, kElements, 0.0F); }

 private:
  const std::string name_;
  float* floats_;
};

// One client: its own connection, and one lease on it.
class Client {
 public:
  explicit Client(int port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                         grpc::InsecureChannelCredentials(),
                                         arguments);
    memory_ = v1::MemoryService::NewStub(channel_);
    attention_ = v1::AttentionService::NewStub(channel_);
  }
  ~Client() {
    if (stream_ != nullptr) CloseLease();
  }

  void OpenLease() {
    stream_ = memory_->KeepLease(&lease_context_, {});
    v1::KeepLeaseResponse response;
    ASSERT_TRUE(stream_->Read(&response));
    lease_ = response.lease();
  }
  grpc::Status CloseLease() {
    lease_context_.TryCancel();
    const grpc::Status status = stream_->Finish();
    stream_.reset();
    return status;
  }
  grpc::Status AwaitLeaseEnd() {
    v1::KeepLeaseResponse response;
    EXPECT_FALSE(stream_->Read(&response));
    const grpc::Status status = stream_->Finish();
    stream_.reset();
    return status;
  }
  const std::string& lease() const { return lease_; }

  v1::RegisterSharedMemoryRequest RegisterRequest(
      const std::string& region, const TensorObject& object) const {
    v1::RegisterSharedMemoryRequest request;
    request.set_lease(lease_);
    request.set_region(region);
    request.set_object_name(object.name());
    request.set_byte_size(4 * kBytes);
    return request;
  }
  grpc::Status Register(const v1::RegisterSharedMemoryRequest& request) {
    grpc::ClientContext context;
    v1::RegisterMemoryResponse response;
    return memory_->RegisterSharedMemory(&context, request, &response);
  }
  grpc::Status Register(const std::string& region, const TensorObject& object) {
    return Register(RegisterRequest(region, object));
  }
  grpc::Status Unregister(const std::string& region,
                          absl::Duration timeout = absl::Seconds(60)) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    v1::UnregisterMemoryRequest request;
    request.set_lease(lease_);
    request.set_region(region);
    v1::UnregisterMemoryResponse response;
    return memory_->UnregisterMemory(&context, request, &response);
  }
  std::vector<v1::MemoryRegion> List() {
    grpc::ClientContext context;
    v1::ListMemoryRequest request;
    request.set_lease(lease_);
    v1::ListMemoryResponse response;
    const grpc::Status status =
        memory_->ListMemory(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {response.regions().begin(), response.regions().end()};
  }

  static v1::AttentionRequest CallOn(const std::string& region) {
    v1::AttentionRequest request;
    v1::MemorySlice* slices[4] = {};
    int tensors = 0;
    for (v1::Tensor* tensor : {request.mutable_query(), request.mutable_key(),
                               request.mutable_value()}) {
      tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
      for (const int64_t dim : {int64_t{1}, kTokens, kHeads, kDim}) {
        tensor->add_shape(dim);
      }
      slices[tensors++] = tensor->mutable_memory();
    }
    slices[3] = request.mutable_output();
    for (uint64_t i = 0; i < 4; ++i) {
      slices[i]->set_region(region);
      slices[i]->set_offset(i * kBytes);
      slices[i]->set_byte_size(kBytes);
    }
    return request;
  }
  grpc::Status Attend(const v1::AttentionRequest& request,
                      v1::AttentionResponse* response = nullptr,
                      const std::string& lease = "",
                      absl::Duration timeout = absl::Seconds(60)) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    if (!lease.empty()) context.AddMetadata(kLeaseKey, lease);
    v1::AttentionResponse dropped;
    return attention_->Attention(&context, request,
                                 response == nullptr ? &dropped : response);
  }

  v1::MemoryService::Stub* memory() { return memory_.get(); }
  v1::AttentionService::Stub* attention() { return attention_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::MemoryService::Stub> memory_;
  std::unique_ptr<v1::AttentionService::Stub> attention_;
  grpc::ClientContext lease_context_;
  std::unique_ptr<grpc::ClientReader<v1::KeepLeaseResponse>> stream_;
  std::string lease_;
};

class MemoryServiceTest : public ::testing::Test {
 protected:
  explicit MemoryServiceTest(bool shared = true, bool cuda = true,
                             const BearerToken& token = BearerToken())
      : metrics_("test", "cpu"),
        queue_(16),
        budget_(1 << 20),
        attacher_(&manager_, {}),
        table_({},
               [this](const internal::v1::Region& memory,
                      std::function<void()> done) {
                 attacher_.Detach(memory, std::move(done));
               }),
        scheduler_(&manager_, &queue_, &metrics_, SchedulerOptions()),
        attention_(&manager_, &scheduler_, &budget_, &metrics_,
                   {"test", "cpu", 1 << 20, 1 << 20, token,
                    shared || cuda ? &table_ : nullptr, shared, cuda}),
        memory_(&table_, &attacher_, &metrics_, {shared, cuda, token}) {
    Group group = group_.Describe("g1", 1);
    group.state = GroupState::kReady;
    ON_CALL(manager_, Groups).WillByDefault(Return(std::vector<Group>{group}));
    ON_CALL(manager_, JoinedWorkers).WillByDefault(Return(group.members));
    grpc::ServerBuilder builder;
    SetServerArguments(1 << 20, &builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&attention_);
    builder.RegisterService(&memory_);
    server_ = builder.BuildAndStart();
    scheduler_.OnGroupFormed(group);
    AwaitTrue([this] { return scheduler_.Ready(); });
    client_ = std::make_unique<Client>(port_);
  }

  ~MemoryServiceTest() override {
    group_.Release();
    group_.ReleaseRegions();
    client_.reset();
    memory_.EndLeases();
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::seconds(10));
    scheduler_.Stop();
    EXPECT_TRUE(table_.AwaitEmpty(absl::Now() + absl::Seconds(30)));
    attacher_.Stop();
  }

  static GroupScheduler::Options SchedulerOptions() {
    GroupScheduler::Options options;
    options.probe_interval = absl::Hours(1);
    return options;
  }

  double Counted(const std::string& series) {
    const auto totals = table_.totals();
    metrics_.SetLeases(totals.leases);
    const std::string page = "\n" + metrics_.Serialize();
    const size_t at = page.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series;
    return std::stod(page.substr(at + series.size() + 2));
  }

  void ExpectRefused(const grpc::Status& status, grpc::StatusCode code,
                     const std::string& part) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  }

  NiceMock<MockGroupManager> manager_;
  FakeGroup group_{2};
  Metrics metrics_;
  AdmissionQueue queue_;
  ByteBudget budget_;
  RegionAttacher attacher_;
  RegionTable table_;
  GroupScheduler scheduler_;
  AttentionService attention_;
  MemoryService memory_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
  TensorObject object_{"memory-service-test"};
};

TEST_F(MemoryServiceTest, ACallOnARegionWritesItsOutputThere) {
  client_->OpenLease();
  EXPECT_EQ(client_->lease().size(), 32u);
  ASSERT_TRUE(client_->Register("r", object_).ok());
  EXPECT_EQ(group_.attached(0).size(), 1u);
  EXPECT_EQ(group_.attached(1).size(), 1u);
  v1::AttentionResponse response;
  const grpc::Status status = client_->Attend(Client::CallOn("r"), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  object_.ExpectOutput();
  EXPECT_TRUE(response.output().has_memory());
  EXPECT_EQ(response.output().memory().region(), "r");
  EXPECT_EQ(response.output().memory().offset(), 3 * kBytes);
  EXPECT_EQ(response.output().memory().byte_size(), kBytes);
  EXPECT_EQ(response.output().shape_size(), 4);
  EXPECT_EQ(response.report().group(), "g1");
  EXPECT_EQ(Counted("ithaca_tensor_bytes_total{direction=\"in\",plane="
                    "\"shared_memory\"}"),
            3.0 * kBytes);
  EXPECT_EQ(Counted("ithaca_tensor_bytes_total{direction=\"out\",plane="
                    "\"shared_memory\"}"),
            1.0 * kBytes);
  EXPECT_EQ(
      Counted("ithaca_tensor_bytes_total{direction=\"in\",plane=\"unary\"}"),
      0);

  ASSERT_TRUE(client_->Unregister("r").ok());
  EXPECT_THAT(group_.attached(0), IsEmpty());
  EXPECT_THAT(group_.attached(1), IsEmpty());
  ExpectRefused(client_->Attend(Client::CallOn("r")),
                grpc::StatusCode::NOT_FOUND, "query.memory.region");
  EXPECT_TRUE(object_.Exists());
}

TEST_F(MemoryServiceTest, TensorsInRegionsAndInTheMessageMix) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  v1::AttentionRequest request = Client::CallOn("r");
  request.mutable_query()->set_data(std::string(kBytes, '\0'));
  request.clear_output();
  v1::AttentionResponse response;
  const grpc::Status status = client_->Attend(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.output().data().size(), kBytes);
  float first = 0;
  std::memcpy(&first, response.output().data().data(), sizeof(first));
  EXPECT_FLOAT_EQ(first, 1.0F);
  for (const auto& [plane, bytes] : std::vector<std::pair<std::string, double>>{
           {"unary", kBytes}, {"shared_memory", 2.0 * kBytes}}) {
    EXPECT_EQ(Counted("ithaca_tensor_bytes_total{direction=\"in\",plane=\"" +
                      plane + "\"}"),
              bytes);
  }
}

TEST_F(MemoryServiceTest, OnlyTheBytesOfMessagesAreBudgeted) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  group_.Hold();
  std::thread call(
      [this] { EXPECT_TRUE(client_->Attend(Client::CallOn("r")).ok()); });
  group_.AwaitHeld(1);
  EXPECT_EQ(budget_.reserved(), 0);
  group_.Release();
  call.join();
}

TEST_F(MemoryServiceTest, AClientHasItsOwnRegionsOnly) {
  Client other(port_);
  client_->OpenLease();
  other.OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  const auto same = [&](const grpc::Status& status) {
    ExpectRefused(status, grpc::StatusCode::NOT_FOUND,
                  "query.memory.region: this client has none named \"r\"");
  };
  same(other.Attend(Client::CallOn("r")));
  same(client_->Attend(Client::CallOn("r"), nullptr, other.lease()));
  same(client_->Attend(Client::CallOn("r"), nullptr, "no lease"));
  EXPECT_TRUE(
      other.Attend(Client::CallOn("r"), nullptr, client_->lease()).ok());
  EXPECT_TRUE(client_->Attend(Client::CallOn("r")).ok());
  EXPECT_THAT(other.List(), IsEmpty());
  ASSERT_EQ(client_->List().size(), 1u);
  EXPECT_EQ(client_->List()[0].kind(), "shared");
  EXPECT_EQ(client_->List()[0].byte_size(), 4 * kBytes);
  ExpectRefused(other.Unregister("r"), grpc::StatusCode::NOT_FOUND, "region");
  ExpectRefused(other.Register("r", object_), grpc::StatusCode::ALREADY_EXISTS,
                "\"r\"");
}

TEST_F(MemoryServiceTest, BadRegistrationsAreRefusedAndLeaveNothing) {
  client_->OpenLease();
  const auto good = client_->RegisterRequest("r", object_);
  const auto refused =
      [&](const std::function<void(v1::RegisterSharedMemoryRequest*)>& change,
          grpc::StatusCode code, const std::string& part) {
        v1::RegisterSharedMemoryRequest request = good;
        change(&request);
        ExpectRefused(client_->Register(request), code, part);
      };
  using Request = v1::RegisterSharedMemoryRequest;
  refused([](Request* r) { r->set_lease("0123"); }, grpc::StatusCode::NOT_FOUND,
          "lease");
  refused([](Request* r) { r->set_lease(""); }, grpc::StatusCode::NOT_FOUND,
          "lease");
  refused([](Request* r) { r->set_region(""); },
          grpc::StatusCode::INVALID_ARGUMENT, "region");
  refused([](Request* r) { r->set_object_name("/dev-shm"); },
          grpc::StatusCode::INVALID_ARGUMENT, "object_name");
  refused([](Request* r) { r->set_object_name("/ithaca-none"); },
          grpc::StatusCode::NOT_FOUND, "object_name");
  refused([](Request* r) { r->set_offset(1); },
          grpc::StatusCode::INVALID_ARGUMENT, "offset + byte_size");
  refused([](Request* r) { r->set_byte_size(0); },
          grpc::StatusCode::INVALID_ARGUMENT, "byte_size");
  refused([](Request* r) { r->set_byte_size(~uint64_t{0}); },
          grpc::StatusCode::INVALID_ARGUMENT, "offset + byte_size");
  v1::RegisterCudaMemoryRequest cuda;
  cuda.set_lease(client_->lease());
  cuda.set_region("c");
  cuda.set_byte_size(1);
  grpc::ClientContext context;
  v1::RegisterMemoryResponse response;
  ExpectRefused(
      client_->memory()->RegisterCudaMemory(&context, cuda, &response),
      grpc::StatusCode::INVALID_ARGUMENT, "ipc_handle");
  EXPECT_THAT(group_.attached(0), IsEmpty());
  EXPECT_THAT(client_->List(), IsEmpty());
  EXPECT_TRUE(client_->Register(good).ok());
}

TEST_F(MemoryServiceTest, ANameThatIsNotUtf8IsInvalid) {
  // A generated client does not send it: region, field 2, as bytes.
  grpc::GenericStub stub(client_->channel());
  const grpc::Slice slice("\x12\x02\xc3\x28");
  const grpc::ByteBuffer request(&slice, 1);
  for (const char* method :
       {"RegisterSharedMemory", "RegisterCudaMemory", "UnregisterMemory"}) {
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    absl::Notification done;
    grpc::Status status;
    stub.UnaryCall(&context, std::string("/ithaca.v1.MemoryService/") + method,
                   grpc::StubOptions(), &request, &response,
                   [&](grpc::Status ended) {
                     status = std::move(ended);
                     done.Notify();
                   });
    done.WaitForNotification();
    ExpectRefused(status, grpc::StatusCode::INVALID_ARGUMENT, "UTF-8");
  }
}

TEST_F(MemoryServiceTest, CudaMemoryIsForTheWorkersToOpen) {
  client_->OpenLease();
  v1::RegisterCudaMemoryRequest request;
  request.set_lease(client_->lease());
  request.set_region("c");
  request.set_ipc_handle(std::string(64, 'h'));
  request.set_device_uuid("GPU-1");
  request.set_byte_size(100);
  const auto attempt = [&] {
    grpc::ClientContext context;
    v1::RegisterMemoryResponse response;
    return client_->memory()->RegisterCudaMemory(&context, request, &response);
  };
  group_.FailNextAttach(
      0, {grpc::StatusCode::UNIMPLEMENTED, "this rank has no CUDA"});
  ExpectRefused(attempt(), grpc::StatusCode::UNIMPLEMENTED,
                "worker g1/0: this rank has no CUDA");
  EXPECT_THAT(group_.attached(1), IsEmpty());
  ASSERT_TRUE(attempt().ok());
  ASSERT_EQ(client_->List().size(), 1u);
  EXPECT_EQ(client_->List()[0].kind(), "cuda");
}

TEST_F(MemoryServiceTest, UnregisteringWaitsForARunningCall) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  group_.Hold();
  std::thread call(
      [this] { EXPECT_TRUE(client_->Attend(Client::CallOn("r")).ok()); });
  group_.AwaitHeld(1);
  EXPECT_EQ(client_->List()[0].calls_in_use(), 1u);
  std::atomic<bool> unregistered = false;
  std::thread unregister([&] {
    EXPECT_TRUE(client_->Unregister("r").ok());
    unregistered = true;
  });
  AwaitTrue([this] { return client_->List().empty(); });
  ExpectRefused(client_->Attend(Client::CallOn("r")),
                grpc::StatusCode::NOT_FOUND, "region");
  EXPECT_EQ(group_.attached(0).size(), 1u);
  EXPECT_FALSE(unregistered);
  group_.Release();
  call.join();
  unregister.join();
  object_.ExpectOutput();
  EXPECT_THAT(group_.attached(0), IsEmpty());
  EXPECT_TRUE(client_->Register("r", object_).ok());
}

TEST_F(MemoryServiceTest, ARegionGoesThoughItsClientStoppedWaiting) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  group_.Hold();
  // The client of the call gives up as well: the ranks still have the region.
  ExpectRefused(client_->Attend(Client::CallOn("r"), nullptr, "",
                                absl::Milliseconds(100)),
                grpc::StatusCode::DEADLINE_EXCEEDED, "");
  group_.AwaitHeld(1);
  EXPECT_EQ(client_->List()[0].calls_in_use(), 1u);
  ExpectRefused(client_->Unregister("r", absl::Milliseconds(50)),
                grpc::StatusCode::DEADLINE_EXCEEDED, "");
  EXPECT_EQ(group_.attached(0).size(), 1u);
  group_.Release();
  AwaitTrue([this] { return group_.attached(0).empty(); });
  AwaitTrue([this] { return client_->Register("r", object_).ok(); });
}

TEST_F(MemoryServiceTest, AClosedLeaseTakesItsRegionsAndNoOthers) {
  Client other(port_);
  TensorObject others_object("memory-service-test-other");
  client_->OpenLease();
  other.OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  ASSERT_TRUE(other.Register("s", others_object).ok());
  EXPECT_EQ(Counted("ithaca_leases"), 2);
  client_->CloseLease();
  AwaitTrue([this] { return group_.attached(0).size() == 1; });
  AwaitTrue([this] { return !object_.Exists(); });
  EXPECT_EQ(Counted("ithaca_leases"), 1);
  EXPECT_EQ(Counted("ithaca_leases_expired_total"), 1);
  EXPECT_TRUE(other.Attend(Client::CallOn("s")).ok());
  EXPECT_TRUE(others_object.Exists());
  ASSERT_TRUE(other.Unregister("s").ok());
  other.CloseLease();
  AwaitTrue([this] { return Counted("ithaca_leases") == 0; });
  EXPECT_TRUE(others_object.Exists());
  // It had unregistered.
  EXPECT_EQ(Counted("ithaca_leases_expired_total"), 1);
}

TEST_F(MemoryServiceTest, ALeaseEndsWithItsConnectionDuringACall) {
  auto gone = std::make_unique<Client>(port_);
  gone->OpenLease();
  ASSERT_TRUE(gone->Register("r", object_).ok());
  group_.Hold();
  std::thread call([&] {
    EXPECT_FALSE(
        gone->Attend(Client::CallOn("r"), nullptr, "", absl::Milliseconds(200))
            .ok());
  });
  group_.AwaitHeld(1);
  call.join();
  gone.reset();
  AwaitTrue([this] { return Counted("ithaca_leases") == 0; });
  EXPECT_EQ(group_.attached(0).size(), 1u);
  EXPECT_TRUE(object_.Exists());
  group_.Release();
  AwaitTrue([this] { return group_.attached(0).empty(); });
  AwaitTrue([this] { return !object_.Exists(); });
}

TEST_F(MemoryServiceTest, AClientThatLeavesWhileItRegistersHasNothing) {
  client_->OpenLease();
  group_.HoldRegions();
  grpc::ClientContext context;
  std::thread registration([&] {
    v1::RegisterMemoryResponse response;
    EXPECT_FALSE(
        client_->memory()
            ->RegisterSharedMemory(
                &context, client_->RegisterRequest("r", object_), &response)
            .ok());
  });
  group_.AwaitHeldRegions(2);
  context.TryCancel();
  registration.join();
  AwaitTrue([this] {
    return Counted(
               "ithaca_requests_total{code=\"CANCELLED\",method="
               "\"RegisterSharedMemory\"}") == 1;
  });
  EXPECT_THAT(client_->List(), IsEmpty());
  group_.ReleaseRegions();
  AwaitTrue([this] { return client_->Register("r", object_).ok(); });
  EXPECT_EQ(group_.attached(0).size(), 1u);
}

TEST_F(MemoryServiceTest, AnObjectThatShrankIsRefusedByName) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  object_.Truncate(100);
  ExpectRefused(client_->Attend(Client::CallOn("r")),
                grpc::StatusCode::FAILED_PRECONDITION, "shrunk");
  object_.Truncate(4 * kBytes);
  EXPECT_TRUE(client_->Attend(Client::CallOn("r")).ok());
}

TEST_F(MemoryServiceTest, ACallOnARegionIsRetriedOnAnotherGroup) {
  FakeGroup second(2);
  scheduler_.OnGroupFormed(second.Describe("g2", 2));
  AwaitTrue([this] { return scheduler_.Ready("g2", 2); });
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  // Whichever gets it first loses it.
  group_.FailNext(0, {grpc::StatusCode::UNAVAILABLE, "a rank died"});
  v1::AttentionResponse response;
  const grpc::Status status = client_->Attend(Client::CallOn("r"), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.report().group(), "g2");
  object_.ExpectOutput();
  EXPECT_EQ(client_->List()[0].calls_in_use(), 0u);
  // It was not told of the region before: its first call brought it.
  EXPECT_EQ(second.attached(0).size(), 1u);
  scheduler_.OnGroupLost("g2", 2, GroupFailureReason::kWorkerLost, "test");
}

TEST_F(MemoryServiceTest, AnEndingServerEndsLeasesAndKeepsObjects) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  memory_.EndLeases();
  EXPECT_EQ(client_->AwaitLeaseEnd().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  AwaitTrue([this] { return group_.attached(0).empty(); });
  EXPECT_TRUE(object_.Exists());
  EXPECT_EQ(Counted("ithaca_leases_expired_total"), 0);
  Client late(port_);
  grpc::ClientContext context;
  ExpectRefused(late.memory()->KeepLease(&context, {})->Finish(),
                grpc::StatusCode::UNAVAILABLE, "ending");
}

TEST_F(MemoryServiceTest, EveryMethodIsCounted) {
  client_->OpenLease();
  EXPECT_TRUE(client_->Register("r", object_).ok());
  EXPECT_FALSE(client_->Register("r", object_).ok());
  EXPECT_EQ(client_->List().size(), 1u);
  EXPECT_TRUE(client_->Unregister("r").ok());
  client_->CloseLease();
  const auto requests = [this](const std::string& method,
                               const std::string& code) {
    return Counted("ithaca_requests_total{code=\"" + code + "\",method=\"" +
                   method + "\"}");
  };
  AwaitTrue([&] { return requests("KeepLease", "OK") == 1; });
  EXPECT_EQ(requests("RegisterSharedMemory", "OK"), 1);
  EXPECT_EQ(requests("RegisterSharedMemory", "ALREADY_EXISTS"), 1);
  EXPECT_EQ(requests("ListMemory", "OK"), 1);
  EXPECT_EQ(requests("UnregisterMemory", "OK"), 1);
  EXPECT_EQ(Counted("ithaca_in_flight_requests"), 0);
}

class NoPlaneTest : public MemoryServiceTest {
 protected:
  NoPlaneTest() : MemoryServiceTest(false, false) {}
};

TEST_F(NoPlaneTest, NothingIsServedAndTheFlagsAreNamed) {
  grpc::ClientContext context;
  const auto names_flags =
      AllOf(HasSubstr("--allow-shared-memory"), HasSubstr("--allow-cuda"));
  const grpc::Status lease =
      client_->memory()->KeepLease(&context, {})->Finish();
  EXPECT_EQ(lease.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(lease.error_message(), names_flags);
  ExpectRefused(client_->Register("r", object_),
                grpc::StatusCode::UNIMPLEMENTED, "--allow-shared-memory");
  ExpectRefused(client_->Attend(Client::CallOn("r")),
                grpc::StatusCode::UNIMPLEMENTED, "no memory plane");
  grpc::ClientContext info_context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(
      client_->attention()->GetServerInfo(&info_context, {}, &info).ok());
  EXPECT_FALSE(info.shared_memory());
  EXPECT_FALSE(info.cuda_memory());
}

class CudaPlaneTest : public MemoryServiceTest {
 protected:
  CudaPlaneTest() : MemoryServiceTest(false, true) {}
};

TEST_F(CudaPlaneTest, TheOtherPlaneStaysOff) {
  client_->OpenLease();
  ExpectRefused(client_->Register("r", object_),
                grpc::StatusCode::UNIMPLEMENTED, "--allow-shared-memory");
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(client_->attention()->GetServerInfo(&context, {}, &info).ok());
  EXPECT_FALSE(info.shared_memory());
  EXPECT_TRUE(info.cuda_memory());
}

class TokenTest : public MemoryServiceTest {
 protected:
  TokenTest() : MemoryServiceTest(true, true, BearerToken("secret")) {}
};

TEST_F(TokenTest, EveryMethodAsksForTheToken) {
  const auto refused = [this](const grpc::Status& status) {
    ExpectRefused(status, grpc::StatusCode::UNAUTHENTICATED, "");
  };
  grpc::ClientContext lease;
  refused(client_->memory()->KeepLease(&lease, {})->Finish());
  refused(client_->Register("r", object_));
  refused(client_->Unregister("r"));
  grpc::ClientContext cuda;
  v1::RegisterMemoryResponse response;
  refused(client_->memory()->RegisterCudaMemory(&cuda, {}, &response));
  grpc::ClientContext list;
  v1::ListMemoryResponse regions;
  refused(client_->memory()->ListMemory(&list, {}, &regions));
  grpc::ClientContext good;
  good.AddMetadata("authorization", "Bearer secret");
  auto stream = client_->memory()->KeepLease(&good, {});
  v1::KeepLeaseResponse opened;
  EXPECT_TRUE(stream->Read(&opened));
  good.TryCancel();
  stream->Finish();
}

}  // namespace
}  // namespace ithaca::server
