#include "client/attention_client.h"

#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <climits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/call_context.h"
#include "client/plane_choice.h"
#include "client/planned_call.h"
#include "client/rpc_status.h"
#include "ithaca/v1/attention.grpc.pb.h"

namespace ithaca::client {
namespace {

constexpr char kHealthCheckMethod[] = "/grpc.health.v1.Health/Check";
// HealthCheckRequest.service, HealthCheckResponse.status and its SERVING.
constexpr int kHealthServiceField = 1;
constexpr int kHealthStatusField = 1;
constexpr uint64_t kHealthServing = 1;
// What a stream's messages may be, whatever max_message_bytes says of others.
constexpr int kStreamMessageBytes = 4 << 20;
// The most HTTP/2 allows: fewer, larger frames for tensors.
constexpr int kMaxFrameBytes = (1 << 24) - 1;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, INT_MAX));
}

absl::Status Validate(const ClientOptions& options) {
  if (options.address.empty()) {
    return absl::InvalidArgumentError("address: expected HOST:PORT, got ''");
  }
  if (options.max_message_bytes < 1 || options.max_message_bytes > INT_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes: expected 1 to ", INT_MAX, ", got ",
                     options.max_message_bytes));
  }
  if (options.connections < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connections: expected at least 1, got ", options.connections));
  }
  if (options.plane == Plane::kCudaMemory) {
    return absl::InvalidArgumentError(
        "plane: cuda_memory is not for all calls; give tensors of "
        "RegisterCudaMemory");
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::Channel> MakeChannel(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  // The calls themselves see to the limit.
  const int max_bytes = std::max(kStreamMessageBytes,
                                 static_cast<int>(options.max_message_bytes));
  arguments.SetMaxReceiveMessageSize(max_bytes);
  arguments.SetMaxSendMessageSize(max_bytes);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   Milliseconds(options.keepalive_time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   Milliseconds(options.keepalive_timeout));
  // A call that waits on busy GPUs sends nothing and must still be pinged.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Without it equal channels share one connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The caller decides when a call is tried again; gRPC would keep a copy of
  // the request for it.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(
      options.address, grpc::InsecureChannelCredentials(), arguments);
}

class GrpcClient : public Client {
 public:
  GrpcClient(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
             const ClientOptions& options)
      : info_stub_(v1::AttentionService::NewStub(channels.front())),
        core_(std::make_shared<ClientCore>()) {
    core_->options = options;
    for (const auto& channel : channels) {
      core_->stubs.push_back(std::make_unique<grpc::GenericStub>(channel));
    }
    core_->server = std::make_shared<ServerPlanes>(
        channels.front(), options.token,
        static_cast<uint64_t>(options.max_message_bytes));
    core_->lease =
        std::make_shared<MemoryLease>(channels.front(), options.token);
    core_->pool = std::make_shared<RegionPool>(core_->lease,
                                               options.max_idle_shared_bytes);
  }

  // Calls that go on hold the rest.
  ~GrpcClient() override { core_->pool->Clear(); }

  absl::StatusOr<AttentionResult> Attention(
      const AttentionArguments& arguments) override {
    absl::StatusOr<AttentionResult> result;
    absl::Notification ended;
    AttentionAsync(arguments, [&](absl::StatusOr<AttentionResult> outcome) {
      result = std::move(outcome);
      ended.Notify();
    });
    ended.WaitForNotification();
    return result;
  }

  std::shared_ptr<PendingCall> AttentionAsync(
      const AttentionArguments& arguments, AttentionCallback done) override {
    return StartPlannedCall(core_, arguments, std::move(done));
  }

  absl::StatusOr<Tensor> AllocateTensor(v1::DataType dtype,
                                        const std::vector<int64_t>& shape,
                                        absl::Time deadline) override {
    const std::optional<int64_t> bytes = DenseBytes(dtype, shape);
    if (!bytes.has_value()) {
      return absl::InvalidArgumentError("no tensor can have this shape");
    }
    const auto size = static_cast<uint64_t>(*bytes);
    const auto region = AcquireRegion(size, deadline);
    if (!region.ok()) {
      core_->Tell(std::string(region.status().message()));
      return Tensor(dtype, shape);
    }
    if (*region == nullptr) return Tensor(dtype, shape);
    return Tensor(dtype, shape, (*region)->bytes().first(size), {*region, 0});
  }

  absl::StatusOr<std::shared_ptr<MemoryRegion>> RegisterCudaMemory(
      const CudaMemory& memory, absl::Time deadline) override {
    auto region = std::make_shared<MemoryRegion>(core_->lease, memory);
    absl::Status registered;
    absl::Notification ended;
    core_->lease->Register(region, deadline, [&](absl::Status status) {
      registered = std::move(status);
      ended.Notify();
    });
    ended.WaitForNotification();
    if (!registered.ok()) return registered;
    return region;
  }

  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(
      absl::Time deadline) override {
    grpc::ClientContext context;
    PrepareContext(core_->options.token, deadline, &context);
    v1::GetServerInfoResponse response;
    const grpc::Status status =
        info_stub_->GetServerInfo(&context, {}, &response);
    if (!status.ok()) return ToAbslStatus(status, context);
    return response;
  }

  absl::StatusOr<bool> IsServing(const std::string& service,
                                 absl::Time deadline) override {
    // Two messages of one field each do not need a generated stub.
    google::protobuf::UnknownFieldSet fields;
    fields.AddLengthDelimited(kHealthServiceField, service);
    std::string bytes;
    fields.SerializeToString(&bytes);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);

    grpc::ClientContext context;
    PrepareContext(core_->options.token, deadline, &context);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification ended;
    core_->stubs.front()->UnaryCall(&context, kHealthCheckMethod, {}, &request,
                                    &response, [&](grpc::Status outcome) {
                                      status = std::move(outcome);
                                      ended.Notify();
                                    });
    ended.WaitForNotification();
    if (!status.ok()) return ToAbslStatus(status, context);

    grpc::Slice answer;
    if (!response.DumpToSingleSlice(&answer).ok() ||
        !fields.ParseFromArray(answer.begin(),
                               static_cast<int>(answer.size()))) {
      return absl::InternalError("the health response is malformed");
    }
    for (int i = 0; i < fields.field_count(); ++i) {
      const auto& field = fields.field(i);
      if (field.number() == kHealthStatusField &&
          field.type() == google::protobuf::UnknownField::TYPE_VARINT) {
        return field.varint() == kHealthServing;
      }
    }
    return false;  // status 0, UNKNOWN, is not sent
  }

 private:
  // Null: shared memory is not asked for, or there is nothing to hold.
  absl::StatusOr<std::shared_ptr<MemoryRegion>> AcquireRegion(
      uint64_t size, absl::Time deadline) {
    const Plane asked = core_->options.plane;
    if (size == 0 || asked == Plane::kUnary || asked == Plane::kStream) {
      return nullptr;
    }
    absl::StatusOr<std::shared_ptr<MemoryRegion>> result;
    absl::Notification ended;
    core_->server->Get(deadline, [&](const PlaneLimits& limits) {
      const PlaneChoice choice =
          ChoosePlane(Plane::kSharedMemory, {.request = size}, limits);
      if (choice.plane != Plane::kSharedMemory) {
        result = absl::FailedPreconditionError(choice.note);
        ended.Notify();
        return;
      }
      core_->pool->Acquire(
          size, deadline,
          [&](absl::StatusOr<std::shared_ptr<MemoryRegion>> region) {
            result = std::move(region);
            ended.Notify();
          });
    });
    ended.WaitForNotification();
    return result;
  }

  const std::unique_ptr<v1::AttentionService::Stub> info_stub_;
  const std::shared_ptr<ClientCore> core_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ClientOptions& options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  const auto deadline =
      absl::ToChronoTime(absl::Now() + options.connect_timeout);
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.connections; ++i) {
    channels.push_back(MakeChannel(options));
    channels.back()->GetState(/*try_to_connect=*/true);
  }
  for (const auto& channel : channels) {
    if (!channel->WaitForConnected(deadline)) {
      return absl::UnavailableError(absl::StrCat(
          "no coordinator answers at ", options.address, " within ",
          absl::FormatDuration(options.connect_timeout)));
    }
  }
  return std::make_unique<GrpcClient>(channels, options);
}

}  // namespace ithaca::client
