#include "server/protocol_enums.h"

#include <optional>

#include "core/attention_call.h"
#include "core/data_type.h"
#include "ithaca/v1/attention.pb.h"

namespace ithaca::server {

namespace v1 = ithaca::v1;

std::optional<DataType> FromProto(v1::DataType dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_FLOAT32:
      return DataType::kFloat32;
    case v1::DATA_TYPE_FLOAT16:
      return DataType::kFloat16;
    case v1::DATA_TYPE_BFLOAT16:
      return DataType::kBFloat16;
    default:
      return std::nullopt;
  }
}

std::optional<TokenOrder> FromProto(v1::TokenOrder order) {
  switch (order) {
    case v1::TOKEN_ORDER_UNSPECIFIED:
    case v1::TOKEN_ORDER_IMAGE_FIRST:
      return TokenOrder::kImageFirst;
    case v1::TOKEN_ORDER_TEXT_FIRST:
      return TokenOrder::kTextFirst;
    default:
      return std::nullopt;
  }
}

std::optional<CommunicationPrecision> FromProto(
    v1::CommunicationPrecision precision) {
  switch (precision) {
    case v1::COMMUNICATION_PRECISION_UNSPECIFIED:
    case v1::COMMUNICATION_PRECISION_NATIVE:
      return CommunicationPrecision::kNative;
    case v1::COMMUNICATION_PRECISION_FP8_E4M3:
      return CommunicationPrecision::kFp8E4m3;
    case v1::COMMUNICATION_PRECISION_INT8:
      return CommunicationPrecision::kInt8;
    default:
      return std::nullopt;
  }
}

std::optional<HeadSchedule> FromProto(v1::HeadSchedule schedule) {
  switch (schedule) {
    case v1::HEAD_SCHEDULE_UNSPECIFIED:
    case v1::HEAD_SCHEDULE_AUTO:
      return HeadSchedule::kAuto;
    case v1::HEAD_SCHEDULE_FUSED:
      return HeadSchedule::kFused;
    case v1::HEAD_SCHEDULE_PER_HEAD:
      return HeadSchedule::kPerHead;
    default:
      return std::nullopt;
  }
}

std::optional<AttentionKernelKind> FromProto(v1::AttentionKernel kind) {
  switch (kind) {
    case v1::ATTENTION_KERNEL_UNSPECIFIED:
    case v1::ATTENTION_KERNEL_AUTO:
      return AttentionKernelKind::kAuto;
    case v1::ATTENTION_KERNEL_MATH:
      return AttentionKernelKind::kMath;
    case v1::ATTENTION_KERNEL_FLASH:
      return AttentionKernelKind::kFlash;
    case v1::ATTENTION_KERNEL_CUDNN:
      return AttentionKernelKind::kCudnn;
    default:
      return std::nullopt;
  }
}

v1::DataType ToProto(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return v1::DATA_TYPE_FLOAT32;
    case DataType::kFloat16:
      return v1::DATA_TYPE_FLOAT16;
    case DataType::kBFloat16:
      return v1::DATA_TYPE_BFLOAT16;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

v1::TokenOrder ToProto(TokenOrder order) {
  return order == TokenOrder::kTextFirst ? v1::TOKEN_ORDER_TEXT_FIRST
                                         : v1::TOKEN_ORDER_IMAGE_FIRST;
}

v1::CommunicationPrecision ToProto(CommunicationPrecision precision) {
  switch (precision) {
    case CommunicationPrecision::kNative:
      return v1::COMMUNICATION_PRECISION_NATIVE;
    case CommunicationPrecision::kFp8E4m3:
      return v1::COMMUNICATION_PRECISION_FP8_E4M3;
    case CommunicationPrecision::kInt8:
      return v1::COMMUNICATION_PRECISION_INT8;
  }
  return v1::COMMUNICATION_PRECISION_UNSPECIFIED;
}

v1::HeadSchedule ToProto(HeadSchedule schedule) {
  switch (schedule) {
    case HeadSchedule::kAuto:
      return v1::HEAD_SCHEDULE_AUTO;
    case HeadSchedule::kFused:
      return v1::HEAD_SCHEDULE_FUSED;
    case HeadSchedule::kPerHead:
      return v1::HEAD_SCHEDULE_PER_HEAD;
  }
  return v1::HEAD_SCHEDULE_UNSPECIFIED;
}

v1::AttentionKernel ToProto(AttentionKernelKind kind) {
  switch (kind) {
    case AttentionKernelKind::kAuto:
      return v1::ATTENTION_KERNEL_AUTO;
    case AttentionKernelKind::kMath:
      return v1::ATTENTION_KERNEL_MATH;
    case AttentionKernelKind::kFlash:
      return v1::ATTENTION_KERNEL_FLASH;
    case AttentionKernelKind::kCudnn:
      return v1::ATTENTION_KERNEL_CUDNN;
  }
  return v1::ATTENTION_KERNEL_UNSPECIFIED;
}

}  // namespace ithaca::server
