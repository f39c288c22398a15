#include "worker/grpc_rendezvous_store.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using internal::v1::StoreGetRequest;
using internal::v1::StoreGetResponse;
using internal::v1::StoreSetRequest;
using internal::v1::StoreSetResponse;

// Answers what it has, refuses the attempt "over", and keeps a caller that
// asks for anything else waiting until it gives up.
class FakeStore : public internal::v1::WorkerRegistry::Service {
 public:
  grpc::Status StoreSet(grpc::ServerContext*, const StoreSetRequest* request,
                        StoreSetResponse*) override {
    if (request->rendezvous_id() == "over") return Over();
    values_[{request->rendezvous_id(), request->key()}] = request->value();
    return grpc::Status::OK;
  }

  grpc::Status StoreGet(grpc::ServerContext* context,
                        const StoreGetRequest* request,
                        StoreGetResponse* response) override {
    if (request->rendezvous_id() == "over") return Over();
    auto it = values_.find({request->rendezvous_id(), request->key()});
    if (it != values_.end()) {
      response->set_value(it->second);
      return grpc::Status::OK;
    }
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }

 private:
  static grpc::Status Over() {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "over");
  }

  std::map<std::pair<std::string, std::string>, std::string> values_;
};

class GrpcRendezvousStoreTest : public ::testing::Test {
 protected:
  GrpcRendezvousStoreTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials());
  }
  ~GrpcRendezvousStoreTest() override { server_->Shutdown(); }

  FakeStore service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(GrpcRendezvousStoreTest, WhatIsSetIsGotInItsOwnAttemptOnly) {
  GrpcRendezvousStore store(channel_, "a", ""), other(channel_, "b", "");
  const std::string value("bytes\0\xff", 7);
  ASSERT_TRUE(store.Set("key", value).ok());
  absl::StatusOr<std::string> got = store.Get("key", absl::Seconds(30));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, value);
  EXPECT_EQ(other.Get("key", absl::Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GrpcRendezvousStoreTest, AnAttemptThatIsOverIsFailedPrecondition) {
  GrpcRendezvousStore store(channel_, "over", "");
  EXPECT_EQ(store.Set("key", "v").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store.Get("key", absl::Seconds(30)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(GrpcRendezvousStoreTest, AStoreThatIsGoneIsUnavailable) {
  server_->Shutdown();
  GrpcRendezvousStore store(channel_, "a", "");
  EXPECT_EQ(store.Set("key", "v").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store.Get("key", absl::Seconds(30)).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ithaca
