#ifndef ITHACA_SERVER_PROTOCOL_ENUMS_H_
#define ITHACA_SERVER_PROTOCOL_ENUMS_H_

#include <optional>

#include "core/attention_call.h"
#include "core/data_type.h"
#include "ithaca/v1/attention.pb.h"

// ithaca.v1's enums and core's, both ways. UNSPECIFIED becomes what the
// protocol says it stands for; a number that no name stands for, and an
// UNSPECIFIED data type, become nullopt. Pure functions.

namespace ithaca::server {

std::optional<DataType> FromProto(ithaca::v1::DataType dtype);
std::optional<TokenOrder> FromProto(ithaca::v1::TokenOrder order);
std::optional<CommunicationPrecision> FromProto(
    ithaca::v1::CommunicationPrecision precision);
std::optional<HeadSchedule> FromProto(ithaca::v1::HeadSchedule schedule);
std::optional<AttentionKernelKind> FromProto(ithaca::v1::AttentionKernel kind);

ithaca::v1::DataType ToProto(DataType dtype);
ithaca::v1::TokenOrder ToProto(TokenOrder order);
ithaca::v1::CommunicationPrecision ToProto(CommunicationPrecision precision);
ithaca::v1::HeadSchedule ToProto(HeadSchedule schedule);
ithaca::v1::AttentionKernel ToProto(AttentionKernelKind kind);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_PROTOCOL_ENUMS_H_
