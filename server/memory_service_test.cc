#include "server/memory_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "ithaca/v1/memory.grpc.pb.h"
#include "server/memory_test_client.h"
#include "server/memory_test_server.h"

namespace ithaca::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using MemoryServiceTest = MemoryServerTest;

TEST_F(MemoryServiceTest, AClientHasItsOwnRegionsOnly) {
  MemoryTestClient other(port_);
  client_->OpenLease();
  other.OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  const auto same = [&](const grpc::Status& status) {
    ExpectRefused(status, grpc::StatusCode::NOT_FOUND,
                  "query.memory.region: this client has none named \"r\"");
  };
  same(other.Attend(MemoryTestClient::CallOn("r")));
  same(client_->Attend(MemoryTestClient::CallOn("r"), nullptr, other.lease()));
  same(client_->Attend(MemoryTestClient::CallOn("r"), nullptr, "no lease"));
  EXPECT_TRUE(
      other.Attend(MemoryTestClient::CallOn("r"), nullptr, client_->lease())
          .ok());
  EXPECT_TRUE(client_->Attend(MemoryTestClient::CallOn("r")).ok());
  EXPECT_THAT(other.List(), IsEmpty());
  ASSERT_EQ(client_->List().size(), 1u);
  EXPECT_EQ(client_->List()[0].kind(), "shared");
  EXPECT_EQ(client_->List()[0].byte_size(), TensorObject::kBytes);
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

TEST_F(MemoryServiceTest, AClosedLeaseTakesItsRegionsAndNoOthers) {
  MemoryTestClient other(port_);
  TensorObject others_object;
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
  EXPECT_TRUE(other.Attend(MemoryTestClient::CallOn("s")).ok());
  EXPECT_TRUE(others_object.Exists());
  ASSERT_TRUE(other.Unregister("s").ok());
  other.CloseLease();
  AwaitTrue([this] { return Counted("ithaca_leases") == 0; });
  EXPECT_TRUE(others_object.Exists());
  // It had unregistered.
  EXPECT_EQ(Counted("ithaca_leases_expired_total"), 1);
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

TEST_F(MemoryServiceTest, AnEndingServerEndsLeasesAndKeepsObjects) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  memory_.EndLeases();
  EXPECT_EQ(client_->AwaitLeaseEnd().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  AwaitTrue([this] { return group_.attached(0).empty(); });
  EXPECT_TRUE(object_.Exists());
  EXPECT_EQ(Counted("ithaca_leases_expired_total"), 0);
  MemoryTestClient late(port_);
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

class NoPlaneTest : public MemoryServerTest {
 protected:
  NoPlaneTest() : MemoryServerTest(false, false) {}
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
  ExpectRefused(client_->Attend(MemoryTestClient::CallOn("r")),
                grpc::StatusCode::UNIMPLEMENTED, "no memory plane");
  grpc::ClientContext info_context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(
      client_->attention()->GetServerInfo(&info_context, {}, &info).ok());
  EXPECT_FALSE(info.shared_memory());
  EXPECT_FALSE(info.cuda_memory());
}

class CudaPlaneTest : public MemoryServerTest {
 protected:
  CudaPlaneTest() : MemoryServerTest(false, true) {}
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

class TokenTest : public MemoryServerTest {
 protected:
  TokenTest() : MemoryServerTest(true, true, BearerToken("secret")) {}
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
