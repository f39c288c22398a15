#include "worker/call_conversion.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca {
namespace {

std::optional<DataType> FromProto(ithaca::v1::DataType dtype) {
  switch (dtype) {
    case ithaca::v1::DATA_TYPE_FLOAT32:
      return DataType::kFloat32;
    case ithaca::v1::DATA_TYPE_FLOAT16:
      return DataType::kFloat16;
    case ithaca::v1::DATA_TYPE_BFLOAT16:
      return DataType::kBFloat16;
    default:
      return std::nullopt;
  }
}

std::optional<TokenOrder> FromProto(ithaca::v1::TokenOrder order) {
  switch (order) {
    case ithaca::v1::TOKEN_ORDER_IMAGE_FIRST:
      return TokenOrder::kImageFirst;
    case ithaca::v1::TOKEN_ORDER_TEXT_FIRST:
      return TokenOrder::kTextFirst;
    default:
      return std::nullopt;
  }
}

std::optional<CommunicationPrecision> FromProto(
    ithaca::v1::CommunicationPrecision precision) {
  switch (precision) {
    case ithaca::v1::COMMUNICATION_PRECISION_NATIVE:
      return CommunicationPrecision::kNative;
    case ithaca::v1::COMMUNICATION_PRECISION_FP8_E4M3:
      return CommunicationPrecision::kFp8E4m3;
    case ithaca::v1::COMMUNICATION_PRECISION_INT8:
      return CommunicationPrecision::kInt8;
    default:
      return std::nullopt;
  }
}

std::optional<HeadSchedule> FromProto(ithaca::v1::HeadSchedule schedule) {
  switch (schedule) {
    case ithaca::v1::HEAD_SCHEDULE_AUTO:
      return HeadSchedule::kAuto;
    case ithaca::v1::HEAD_SCHEDULE_FUSED:
      return HeadSchedule::kFused;
    case ithaca::v1::HEAD_SCHEDULE_PER_HEAD:
      return HeadSchedule::kPerHead;
    default:
      return std::nullopt;
  }
}

std::optional<AttentionKernelKind> FromProto(
    ithaca::v1::AttentionKernel kernel) {
  switch (kernel) {
    case ithaca::v1::ATTENTION_KERNEL_AUTO:
      return AttentionKernelKind::kAuto;
    case ithaca::v1::ATTENTION_KERNEL_MATH:
      return AttentionKernelKind::kMath;
    case ithaca::v1::ATTENTION_KERNEL_FLASH:
      return AttentionKernelKind::kFlash;
    case ithaca::v1::ATTENTION_KERNEL_CUDNN:
      return AttentionKernelKind::kCudnn;
    default:
      return std::nullopt;
  }
}

// Converts one enum; the first that fails is what `status` says.
template <typename Proto, typename Core>
void Convert(Proto value, const char* field, Core* out, absl::Status* status) {
  if (auto converted = FromProto(value)) {
    *out = *converted;
  } else if (status->ok()) {
    *status = absl::InvalidArgumentError(
        absl::StrCat("call.", field, ": expected a known value, got ",
                     static_cast<int>(value)));
  }
}

void Convert(bool is_set, const internal::v1::RegionSlice& slice,
             std::optional<RegionSlice>* out, absl::Status* status) {
  if (!is_set) return;
  absl::StatusOr<Region> region = ToRegion(slice.region());
  if (region.ok()) {
    *out = RegionSlice{*std::move(region), slice.offset(), slice.byte_size()};
  } else if (status->ok()) {
    *status = region.status();
  }
}

}  // namespace

absl::StatusOr<Region> ToRegion(const internal::v1::Region& region) {
  Region result;
  result.id = region.id();
  result.byte_size = region.byte_size();
  switch (region.memory_case()) {
    case internal::v1::Region::kShared:
      result.memory = SharedMemoryObject{
          region.shared().object_name(), region.shared().offset(),
          region.shared().device_number(), region.shared().inode()};
      return result;
    case internal::v1::Region::kCuda:
      result.memory =
          CudaAllocation{region.cuda().ipc_handle(),
                         region.cuda().device_uuid(), region.cuda().offset()};
      return result;
    case internal::v1::Region::MEMORY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("region.memory: expected a known kind");
}

absl::StatusOr<RankCall> ToRankCall(const internal::v1::AttentionCall& call) {
  RankCall result;
  result.number = call.call_number();
  result.plan_fingerprint = call.plan_fingerprint();
  result.return_text_output = call.return_text_output();

  AttentionShape& shape = result.shape;
  shape.batch = call.batch();
  shape.image_tokens = call.image_tokens();
  shape.text_tokens = call.text_tokens();
  shape.valid_text_tokens.assign(call.valid_text_tokens().begin(),
                                 call.valid_text_tokens().end());
  shape.image_queries_only = call.image_queries_only();
  shape.num_heads = call.num_heads();
  shape.num_kv_heads = call.num_kv_heads();
  shape.head_dim = call.head_dim();
  AttentionOptions& options = result.options;
  options.softmax_scale = call.softmax_scale();

  absl::Status status;
  Convert(call.dtype(), "dtype", &shape.dtype, &status);
  Convert(call.order(), "order", &shape.order, &status);
  Convert(call.communication_precision(), "communication_precision",
          &options.precision, &status);
  Convert(call.head_schedule(), "head_schedule", &options.schedule, &status);
  Convert(call.kernel(), "kernel", &options.kernel, &status);
  Convert(call.has_query_region(), call.query_region(), &result.query, &status);
  Convert(call.has_key_region(), call.key_region(), &result.key, &status);
  Convert(call.has_value_region(), call.value_region(), &result.value, &status);
  Convert(call.has_output_region(), call.output_region(), &result.output,
          &status);
  if (!status.ok()) return status;
  return result;
}

internal::v1::RankExecution ToProto(const RankResult& result) {
  internal::v1::RankExecution execution;
  execution.set_kernel(ToProto(result.report.kernel));
  for (int i = 0; i < kNumStages; ++i) {
    (*execution
          .mutable_stage_seconds())[std::string(Name(static_cast<Stage>(i)))] =
        result.report.stage_seconds[static_cast<size_t>(i)];
  }
  execution.set_communication_bytes(static_cast<uint64_t>(
      std::max<int64_t>(0, result.report.communication_bytes)));
  execution.set_total_seconds(result.total_seconds);
  return execution;
}

ithaca::v1::AttentionKernel ToProto(AttentionKernelKind kernel) {
  switch (kernel) {
    case AttentionKernelKind::kAuto:
      return ithaca::v1::ATTENTION_KERNEL_AUTO;
    case AttentionKernelKind::kMath:
      return ithaca::v1::ATTENTION_KERNEL_MATH;
    case AttentionKernelKind::kFlash:
      return ithaca::v1::ATTENTION_KERNEL_FLASH;
    case AttentionKernelKind::kCudnn:
      return ithaca::v1::ATTENTION_KERNEL_CUDNN;
  }
  return ithaca::v1::ATTENTION_KERNEL_UNSPECIFIED;
}

}  // namespace ithaca
