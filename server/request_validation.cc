#include "server/request_validation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/attention_call.h"
#include "core/data_type.h"
#include "ithaca/v1/attention.pb.h"
#include "server/attention_message.h"
#include "server/memory_slice.h"
#include "server/protocol_enums.h"

namespace ithaca::server {

namespace {

namespace v1 = ithaca::v1;

// The room that an AttentionResponse needs beside its output: id, shape and
// report, with a margin.
constexpr int64_t kMaxResponseOverheadBytes = 4096;

absl::string_view View(std::string_view text) {
  return {text.data(), text.size()};
}

absl::Status Invalid(absl::string_view field, absl::string_view expected,
                     absl::string_view actual) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", got ", actual));
}

// One tensor of the request; dims are [batch, tokens, heads, head_dim] also
// where it came with rank 3.
struct TensorView {
  absl::string_view name;
  const v1::Tensor* message = nullptr;
  int64_t received_bytes = 0;
  DataType dtype = DataType::kFloat32;
  std::array<int64_t, 4> dims = {1, 0, 0, 0};

  int rank() const { return message->shape_size(); }
  // "key.shape[1] (tokens)", counting as the client does.
  std::string DimName(size_t dim) const {
    constexpr const char* kNames[] = {"batch", "tokens", "heads", "head_dim"};
    return absl::StrCat(name, ".shape[", static_cast<int>(dim) - (4 - rank()),
                        "] (", kNames[dim], ")");
  }
  std::string ShapeText() const {
    return absl::StrCat("[", absl::StrJoin(message->shape(), ", "), "]");
  }
};

absl::Status ReadTensor(absl::string_view name, bool present,
                        const v1::Tensor& message, const TensorBytes& data,
                        TensorView* tensor) {
  tensor->name = name;
  tensor->message = &message;
  tensor->received_bytes = data.size();
  if (!present) return Invalid(name, "a tensor", "none");
  const auto dtype = FromProto(message.dtype());
  if (!dtype) {
    return Invalid(absl::StrCat(name, ".dtype"),
                   "DATA_TYPE_FLOAT32, DATA_TYPE_FLOAT16 or DATA_TYPE_BFLOAT16",
                   absl::StrCat("number ", static_cast<int>(message.dtype())));
  }
  tensor->dtype = *dtype;
  if (message.shape_size() != 3 && message.shape_size() != 4) {
    return Invalid(absl::StrCat(name, ".shape"),
                   "rank 3 or 4, [batch, tokens, heads, head_dim]",
                   absl::StrCat("rank ", message.shape_size()));
  }
  std::copy(message.shape().begin(), message.shape().end(),
            tensor->dims.end() - message.shape_size());
  for (size_t dim = 0; dim < 4; ++dim) {
    if (tensor->dims[dim] < 1) {
      return Invalid(tensor->DimName(dim), "at least 1",
                     absl::StrCat(tensor->dims[dim]));
    }
  }
  return absl::OkStatus();
}

// What must agree among tensors: `tensor`'s dims in `which` with other's.
absl::Status CheckSame(const TensorView& tensor, const TensorView& other,
                       std::initializer_list<size_t> which) {
  if (tensor.dtype != other.dtype) {
    return Invalid(absl::StrCat(tensor.name, ".dtype"),
                   absl::StrCat(other.name, "'s ", View(Name(other.dtype))),
                   View(Name(tensor.dtype)));
  }
  for (const size_t dim : which) {
    if (tensor.dims[dim] != other.dims[dim]) {
      return Invalid(tensor.DimName(dim),
                     absl::StrCat(other.name, "'s ", other.dims[dim]),
                     absl::StrCat(tensor.dims[dim]));
    }
  }
  return absl::OkStatus();
}

// The tensor's size by its shape. A source that the transport does not have is
// refused; slices of regions are ReadSlices' affair.
absl::StatusOr<int64_t> CheckBytes(const TensorView& tensor,
                                   TensorTransport transport) {
  int64_t bytes = ByteSize(tensor.dtype);
  for (const int64_t dim : tensor.dims) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      return Invalid(
          absl::StrCat(tensor.name, ".shape"),
          "a tensor of less than 2^63 bytes",
          absl::StrCat(tensor.ShapeText(), " of ", View(Name(tensor.dtype))));
    }
  }
  if (tensor.message->has_memory()) return bytes;
  if (transport == TensorTransport::kInChunks) {
    if (tensor.message->source_case() != v1::Tensor::kData) return bytes;
    return Invalid(absl::StrCat(tensor.name, ".data"),
                   "no data, for a stream's tensors come in chunks",
                   absl::StrCat(tensor.received_bytes, " bytes"));
  }
  if (tensor.received_bytes != bytes) {
    return Invalid(absl::StrCat(tensor.name, ".data"),
                   absl::StrCat(bytes, " bytes for shape ", tensor.ShapeText(),
                                " of ", View(Name(tensor.dtype))),
                   absl::StrCat(tensor.received_bytes));
  }
  return bytes;
}

absl::Status ReadLayout(const v1::SequenceLayout& layout,
                        const TensorView& query, const TensorView& key,
                        AttentionShape* shape) {
  const auto order = FromProto(layout.order());
  if (!order) {
    return Invalid("layout.order", "IMAGE_FIRST or TEXT_FIRST",
                   absl::StrCat("number ", static_cast<int>(layout.order())));
  }
  const int64_t key_tokens = key.dims[1];
  if (layout.text_tokens() < 0 || layout.text_tokens() > key_tokens) {
    return Invalid("layout.text_tokens",
                   absl::StrCat("0 to key's ", key_tokens, " tokens"),
                   absl::StrCat(layout.text_tokens()));
  }
  shape->order = *order;
  shape->text_tokens = layout.text_tokens();
  shape->image_tokens = key_tokens - layout.text_tokens();
  shape->image_queries_only = layout.image_queries_only();
  if (query.dims[1] != shape->query_tokens()) {
    return Invalid(
        query.DimName(1),
        shape->image_queries_only
            ? absl::StrCat(shape->image_tokens, ", key's ", key_tokens,
                           " less layout.text_tokens = ", shape->text_tokens,
                           " with layout.image_queries_only,")
            : absl::StrCat("key's ", key_tokens),
        absl::StrCat(query.dims[1]));
  }
  return absl::OkStatus();
}

absl::StatusOr<AttentionOptions> ReadOptions(
    const v1::AttentionOptions& options, int64_t head_dim,
    const RequestLimits& limits) {
  AttentionOptions read;
  read.softmax_scale = options.has_softmax_scale()
                           ? options.softmax_scale()
                           : 1.0 / std::sqrt(static_cast<double>(head_dim));
  // Logits are float32: a scale that is not would turn them all into NaN.
  if (!(std::abs(read.softmax_scale) <= std::numeric_limits<float>::max())) {
    return Invalid("options.softmax_scale", "a finite float32",
                   absl::StrCat(read.softmax_scale));
  }
  const auto unknown = [](absl::string_view field, int number) {
    return Invalid(absl::StrCat("options.", field), "a value this server knows",
                   absl::StrCat("number ", number));
  };
  const auto precision = FromProto(options.communication_precision());
  if (!precision) {
    return unknown("communication_precision",
                   options.communication_precision());
  }
  const auto schedule = FromProto(options.head_schedule());
  if (!schedule) return unknown("head_schedule", options.head_schedule());
  const auto kernel = FromProto(options.kernel());
  if (!kernel) return unknown("kernel", options.kernel());
  read.precision = *precision;
  read.schedule = *schedule;
  read.kernel = *kernel;
  if (*kernel != AttentionKernelKind::kAuto && limits.kernels &&
      std::find(limits.kernels->begin(), limits.kernels->end(), *kernel) ==
          limits.kernels->end()) {
    return absl::UnimplementedError(
        absl::StrCat("options.kernel: no group of this server has the kernel ",
                     View(Name(*kernel))));
  }
  return read;
}

absl::Status OverLimit(absl::string_view what, int64_t limit, int64_t actual,
                       absl::string_view advice = "") {
  return absl::ResourceExhaustedError(absl::StrCat(
      what, ": expected at most ", limit, " bytes, got ", actual, advice));
}

absl::Status TooManyBytes() {
  return Invalid("the request's tensors, output included",
                 "less than 2^63 bytes in all", "more");
}

}  // namespace

absl::StatusOr<ValidRequest> ValidateRequest(const ReceivedRequest& request,
                                             const RequestLimits& limits,
                                             TensorTransport transport) {
  const v1::AttentionRequest& message = request.message;
  const auto id_bytes = static_cast<int64_t>(message.request_id().size());
  if (id_bytes > kMaxRequestIdBytes) {
    return Invalid("request_id",
                   absl::StrCat("at most ", kMaxRequestIdBytes, " bytes"),
                   absl::StrCat(id_bytes));
  }

  TensorView query;
  TensorView key;
  TensorView value;
  const CallTensors& data = request.tensors;
  for (const auto& status :
       {ReadTensor("query", message.has_query(), message.query(), data.query,
                   &query),
        ReadTensor("key", message.has_key(), message.key(), data.key, &key),
        ReadTensor("value", message.has_value(), message.value(), data.value,
                   &value),
        CheckSame(key, query, {0, 3}), CheckSame(value, key, {0, 1, 2, 3})}) {
    if (!status.ok()) return status;
  }

  ValidRequest valid;
  AttentionShape& shape = valid.shape;
  shape.dtype = query.dtype;
  shape.batch = query.dims[0];
  shape.num_heads = query.dims[2];
  shape.num_kv_heads = key.dims[2];
  shape.head_dim = query.dims[3];
  if (auto status = ReadLayout(message.layout(), query, key, &shape);
      !status.ok()) {
    return status;
  }
  auto options = ReadOptions(message.options(), shape.head_dim, limits);
  if (!options.ok()) return options.status();
  valid.options = *std::move(options);

  TensorSizes sizes;
  sizes.element = ByteSize(shape.dtype);
  for (const TensorView* tensor : {&query, &key, &value}) {
    const auto bytes = CheckBytes(*tensor, transport);
    if (!bytes.ok()) return bytes.status();
    (tensor == &query ? sizes.query : sizes.key) = *bytes;
    if (__builtin_add_overflow(valid.input_bytes, *bytes, &valid.input_bytes)) {
      return TooManyBytes();
    }
  }
  const int64_t output_bytes = sizes.query;
  if (__builtin_add_overflow(valid.input_bytes, output_bytes,
                             &valid.tensor_bytes)) {
    return TooManyBytes();
  }

  const auto& lengths = message.layout().valid_text_tokens();
  shape.valid_text_tokens.assign(lengths.begin(), lengths.end());
  // Where the batch is out of range, Validate says so.
  if (lengths.empty() && shape.batch <= AttentionShape::kMaxBatch) {
    shape.valid_text_tokens.assign(static_cast<size_t>(shape.batch),
                                   shape.text_tokens);
  }
  if (auto status = Validate(shape); !status.ok()) return status;

  if (valid.tensor_bytes > limits.max_request_bytes) {
    return OverLimit("the request's tensors, output included",
                     limits.max_request_bytes, valid.tensor_bytes);
  }
  if (transport == TensorTransport::kInMessage && !message.has_output() &&
      output_bytes > limits.max_message_bytes - kMaxResponseOverheadBytes) {
    return OverLimit("the response's output",
                     limits.max_message_bytes - kMaxResponseOverheadBytes,
                     output_bytes, "; StreamAttention takes larger ones");
  }
  if (HasSlices(message)) {
    auto regions = ReadSlices(message, sizes, limits.regions);
    if (!regions.ok()) return regions.status();
    valid.regions = *std::move(regions);
  }
  valid.inline_bytes = valid.tensor_bytes;
  for (const RegionPart* part : {&valid.regions.query, &valid.regions.key,
                                 &valid.regions.value, &valid.regions.output}) {
    valid.inline_bytes -= static_cast<int64_t>(part->byte_size);
  }
  valid.output_shape.assign(message.query().shape().begin(),
                            message.query().shape().end());
  return valid;
}

}  // namespace ithaca::server
