#include "server/request_validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ithaca/v1/attention.pb.h"
#include "server/attention_message.h"
#include "server/memory_region.h"

namespace ithaca::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace v1 = ithaca::v1;

void SetData(v1::Tensor* tensor, TensorBytes* bytes, int64_t size) {
  tensor->set_data("");
  *bytes = TensorBytes();
  bytes->Append(grpc::Slice(std::string(static_cast<size_t>(size), '\0')));
}

// q, k, v [1, 4, 2, 8] of bfloat16: 128 bytes each.
ReceivedRequest GoodRequest() {
  ReceivedRequest request;
  for (v1::Tensor* tensor :
       {request.message.mutable_query(), request.message.mutable_key(),
        request.message.mutable_value()}) {
    tensor->set_dtype(v1::DATA_TYPE_BFLOAT16);
    for (const int64_t dim : {1, 4, 2, 8}) tensor->add_shape(dim);
  }
  SetData(request.message.mutable_query(), &request.tensors.query, 128);
  SetData(request.message.mutable_key(), &request.tensors.key, 128);
  SetData(request.message.mutable_value(), &request.tensors.value, 128);
  return request;
}

void SetShape(v1::Tensor* tensor, const std::vector<int64_t>& shape) {
  tensor->mutable_shape()->Assign(shape.begin(), shape.end());
}

void SetAll(ReceivedRequest* request, const std::vector<int64_t>& query,
            const std::vector<int64_t>& key) {
  const auto bytes = [](const std::vector<int64_t>& shape) {
    int64_t size = 2;
    for (const int64_t dim : shape) size *= dim;
    return size;
  };
  SetShape(request->message.mutable_query(), query);
  SetShape(request->message.mutable_key(), key);
  SetShape(request->message.mutable_value(), key);
  SetData(request->message.mutable_query(), &request->tensors.query,
          bytes(query));
  SetData(request->message.mutable_key(), &request->tensors.key, bytes(key));
  SetData(request->message.mutable_value(), &request->tensors.value,
          bytes(key));
}

using Change = std::function<void(ReceivedRequest*)>;

absl::Status StatusOf(const Change& change, const RequestLimits& limits = {}) {
  ReceivedRequest request = GoodRequest();
  change(&request);
  return ValidateRequest(request, limits).status();
}

void ExpectRefused(const Change& change, absl::StatusCode code,
                   const std::vector<std::string>& parts) {
  const absl::Status status = StatusOf(change);
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

void ExpectInvalid(const Change& change,
                   const std::vector<std::string>& parts) {
  ExpectRefused(change, absl::StatusCode::kInvalidArgument, parts);
}

TEST(RequestValidationTest, AGoodRequestBecomesItsNumbers) {
  const auto valid = ValidateRequest(GoodRequest(), {});
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->shape.dtype, DataType::kBFloat16);
  EXPECT_EQ(valid->shape.batch, 1);
  EXPECT_EQ(valid->shape.image_tokens, 4);
  EXPECT_EQ(valid->shape.text_tokens, 0);
  EXPECT_THAT(valid->shape.valid_text_tokens, ElementsAre(0));
  EXPECT_EQ(valid->shape.num_heads, 2);
  EXPECT_EQ(valid->shape.num_kv_heads, 2);
  EXPECT_EQ(valid->shape.head_dim, 8);
  EXPECT_DOUBLE_EQ(valid->options.softmax_scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(valid->options.schedule, HeadSchedule::kAuto);
  EXPECT_EQ(valid->input_bytes, 384);
  EXPECT_EQ(valid->tensor_bytes, 512);
}

TEST(RequestValidationTest, ByteCountsThatDoNotFitTheShapeAreRefusedByName) {
  for (const int64_t size : {127, 129, 0, 64, 256}) {
    ExpectInvalid(
        [size](ReceivedRequest* r) {
          SetData(r->message.mutable_query(), &r->tensors.query, size);
        },
        {"query", "128", "got " + std::to_string(size)});
    ExpectInvalid(
        [size](ReceivedRequest* r) {
          SetData(r->message.mutable_value(), &r->tensors.value, size);
        },
        {"value", "128", "got " + std::to_string(size)});
  }
  EXPECT_TRUE(StatusOf([](ReceivedRequest*) {}).ok());
}

TEST(RequestValidationTest, ATensorWithoutSourceHasNoBytes) {
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.mutable_key()->clear_source();
        r->tensors.key = TensorBytes();
      },
      {"key.data", "expected 128", "got 0"});
}

TEST(RequestValidationTest, AbsentTensorsAreRefused) {
  ExpectInvalid([](ReceivedRequest* r) { r->message.clear_query(); },
                {"query", "none"});
  ExpectInvalid([](ReceivedRequest* r) { r->message.clear_value(); },
                {"value", "none"});
}

TEST(RequestValidationTest, DimsWhoseProductOverflowsAreRefusedAtOnce) {
  // 2^70 bytes, 0 modulo 2^64: what arrived "matches" a careless product.
  const std::vector<int64_t> shape = {1, int64_t{1} << 31, int64_t{1} << 31,
                                      128};
  ExpectInvalid(
      [&](ReceivedRequest* r) {
        for (v1::Tensor* tensor :
             {r->message.mutable_query(), r->message.mutable_key(),
              r->message.mutable_value()}) {
          SetShape(tensor, shape);
        }
        r->tensors = CallTensors();
      },
      {"query.shape", "2147483648"});
  // A batch that fits in 63 bits and not in any memory.
  ExpectInvalid(
      [](ReceivedRequest* r) {
        for (v1::Tensor* tensor :
             {r->message.mutable_query(), r->message.mutable_key(),
              r->message.mutable_value()}) {
          SetShape(tensor, {int64_t{1} << 60, 1, 1, 1});
        }
      },
      {"query.data", "got 128"});
}

// Nothing is made for each element of a batch that no message has to carry.
TEST(RequestValidationTest, AHugeBatchInAStreamOrARegionIsRefusedAtOnce) {
  ReceivedRequest request = GoodRequest();
  for (v1::Tensor* tensor :
       {request.message.mutable_query(), request.message.mutable_key(),
        request.message.mutable_value()}) {
    SetShape(tensor, {int64_t{1} << 58, 1, 1, 1});
    tensor->clear_source();
  }
  request.tensors = CallTensors();
  const auto valid = ValidateRequest(request, {}, TensorTransport::kInChunks);
  EXPECT_EQ(valid.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(valid.status().message()),
              HasSubstr("query.shape[0] (batch): expected 1 to 16384"));
}

TEST(RequestValidationTest, DimsOutOfRangeAreRefusedByName) {
  for (const int64_t dim :
       {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    for (int i = 0; i < 4; ++i) {
      ExpectInvalid(
          [&](ReceivedRequest* r) {
            r->message.mutable_query()->set_shape(i, dim);
          },
          {"query.shape[" + std::to_string(i) + "]", std::to_string(dim)});
    }
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(StatusOf([&](ReceivedRequest* r) {
                for (v1::Tensor* tensor :
                     {r->message.mutable_query(), r->message.mutable_key(),
                      r->message.mutable_value()}) {
                  tensor->set_shape(i, std::numeric_limits<int64_t>::max());
                }
              }).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(RequestValidationTest, OnlyRanks3And4AreTaken) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {64}, {8, 8}, {1, 1, 4, 2, 8}}) {
    ExpectInvalid(
        [&](ReceivedRequest* r) { SetShape(r->message.mutable_key(), shape); },
        {"key.shape", "rank 3 or 4", "rank " + std::to_string(shape.size())});
  }
}

TEST(RequestValidationTest, Rank3MeansABatchOf1AndStaysRank3) {
  ReceivedRequest request = GoodRequest();
  SetAll(&request, {4, 2, 8}, {4, 2, 8});
  const auto valid = ValidateRequest(request, {});
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->shape.batch, 1);
  EXPECT_THAT(valid->output_shape, ElementsAre(4, 2, 8));
}

TEST(RequestValidationTest, AMixOfDataTypesIsRefused) {
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.mutable_key()->set_dtype(v1::DATA_TYPE_FLOAT32);
        SetData(r->message.mutable_key(), &r->tensors.key, 256);
      },
      {"key.dtype", "bfloat16", "float32"});
  // The same byte count: only the name of the type tells.
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.mutable_key()->set_dtype(v1::DATA_TYPE_FLOAT16);
      },
      {"key.dtype", "bfloat16", "float16"});
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.mutable_value()->set_dtype(v1::DATA_TYPE_FLOAT16);
      },
      {"value.dtype"});
}

TEST(RequestValidationTest, UnsetAndUnknownDataTypesAreRefused) {
  for (const int number : {0, 99, -1}) {
    ExpectInvalid(
        [number](ReceivedRequest* r) {
          r->message.mutable_query()->set_dtype(
              static_cast<v1::DataType>(number));
        },
        {"query.dtype", std::to_string(number)});
  }
}

TEST(RequestValidationTest, DimsThatDisagreeAreRefused) {
  ExpectInvalid(
      [](ReceivedRequest* r) {
        SetAll(r, {2, 4, 2, 8}, {1, 4, 2, 8});
      },
      {"key.shape[0] (batch)", "query's 2", "got 1"});
  ExpectInvalid(
      [](ReceivedRequest* r) {
        SetAll(r, {1, 4, 2, 8}, {1, 4, 2, 16});
      },
      {"key.shape[3] (head_dim)", "query's 8", "got 16"});
  ExpectInvalid(
      [](ReceivedRequest* r) {
        SetShape(r->message.mutable_value(), {1, 4, 1, 8});
      },
      {"value.shape[2] (heads)", "key's 2", "got 1"});
  ExpectInvalid(
      [](ReceivedRequest* r) {
        SetAll(r, {1, 4, 2, 8}, {1, 5, 2, 8});
      },
      {"query.shape[1] (tokens)", "key's 5", "got 4"});
}

TEST(RequestValidationTest, KeyHeadsMustDivideQueryHeads) {
  ExpectInvalid(
      [](ReceivedRequest* r) {
        SetAll(r, {1, 4, 7, 8}, {1, 4, 2, 8});
      },
      {"heads", "7", "2"});
  EXPECT_TRUE(StatusOf([](ReceivedRequest* r) {
                SetAll(r, {1, 4, 28, 8}, {1, 4, 7, 8});
              }).ok());
}

TEST(RequestValidationTest, HeadDimIsAtMost256) {
  ExpectInvalid(
      [](ReceivedRequest* r) {
        SetAll(r, {1, 4, 2, 257}, {1, 4, 2, 257});
      },
      {"head_dim", "257"});
  EXPECT_TRUE(StatusOf([](ReceivedRequest* r) {
                SetAll(r, {1, 4, 2, 256}, {1, 4, 2, 256});
              }).ok());
}

TEST(RequestValidationTest, TextTokensLieWithinTheSequence) {
  for (const int64_t tokens :
       {int64_t{5}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    ExpectInvalid(
        [tokens](ReceivedRequest* r) {
          r->message.mutable_layout()->set_text_tokens(tokens);
        },
        {"layout.text_tokens", std::to_string(tokens)});
  }
  EXPECT_TRUE(StatusOf([](ReceivedRequest* r) {
                r->message.mutable_layout()->set_text_tokens(4);
              }).ok());
}

TEST(RequestValidationTest, ValidLengthsAreOneABatchElementAndInRange) {
  const auto with = [](const std::vector<int64_t>& lengths) {
    return [lengths](ReceivedRequest* r) {
      SetAll(r, {2, 4, 2, 8}, {2, 4, 2, 8});
      r->message.mutable_layout()->set_text_tokens(3);
      r->message.mutable_layout()->mutable_valid_text_tokens()->Assign(
          lengths.begin(), lengths.end());
    };
  };
  EXPECT_TRUE(StatusOf(with({0, 3})).ok());
  EXPECT_TRUE(StatusOf(with({})).ok());
  ExpectInvalid(with({3}), {"layout.valid_text_tokens", "2", "1"});
  ExpectInvalid(with({1, 2, 3}), {"layout.valid_text_tokens", "2", "3"});
  ExpectInvalid(with({0, 4}), {"layout.valid_text_tokens[1]", "3", "4"});
  ExpectInvalid(with({-1, 0}), {"layout.valid_text_tokens[0]", "-1"});
}

TEST(RequestValidationTest, EmptyValidLengthsMeanThatAllTextIsValid) {
  ReceivedRequest request = GoodRequest();
  SetAll(&request, {2, 4, 2, 8}, {2, 4, 2, 8});
  request.message.mutable_layout()->set_text_tokens(3);
  const auto valid = ValidateRequest(request, {});
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_THAT(valid->shape.valid_text_tokens, ElementsAre(3, 3));
  EXPECT_EQ(valid->shape.image_tokens, 1);
}

TEST(RequestValidationTest, ImageQueriesOnlyNeedsQueriesOfTheImage) {
  const auto with = [](int64_t query_tokens) {
    return [query_tokens](ReceivedRequest* r) {
      SetAll(r, {1, query_tokens, 2, 8}, {1, 7, 2, 8});
      r->message.mutable_layout()->set_text_tokens(3);
      r->message.mutable_layout()->set_image_queries_only(true);
    };
  };
  EXPECT_TRUE(StatusOf(with(4)).ok());
  ExpectInvalid(with(7), {"query.shape[1] (tokens)", "expected 4", "got 7"});
  ExpectInvalid(with(3), {"query.shape[1] (tokens)", "expected 4", "got 3"});
}

TEST(RequestValidationTest, UnknownEnumNumbersAreRefused) {
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.mutable_layout()->set_order(static_cast<v1::TokenOrder>(7));
      },
      {"layout.order", "7"});
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.mutable_options()->set_communication_precision(
            static_cast<v1::CommunicationPrecision>(17));
      },
      {"options.communication_precision", "17"});
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.mutable_options()->set_head_schedule(
            static_cast<v1::HeadSchedule>(-3));
      },
      {"options.head_schedule", "-3"});
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.mutable_options()->set_kernel(
            static_cast<v1::AttentionKernel>(5));
      },
      {"options.kernel", "5"});
}

TEST(RequestValidationTest, TheScaleMustBeFinite) {
  for (const double scale :
       {std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity(), std::nan(""), 1e39, -1e39}) {
    ExpectInvalid(
        [scale](ReceivedRequest* r) {
          r->message.mutable_options()->set_softmax_scale(scale);
        },
        {"options.softmax_scale", "finite"});
  }
  ReceivedRequest request = GoodRequest();
  request.message.mutable_options()->set_softmax_scale(0.0);
  const auto valid = ValidateRequest(request, {});
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->options.softmax_scale, 0.0);
}

TEST(RequestValidationTest, AKernelThatNoGroupHasIsUnimplemented) {
  ReceivedRequest request = GoodRequest();
  request.message.mutable_options()->set_kernel(v1::ATTENTION_KERNEL_CUDNN);
  RequestLimits limits;
  limits.kernels = {AttentionKernelKind::kMath, AttentionKernelKind::kFlash};
  const absl::Status status = ValidateRequest(request, limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("options.kernel"), HasSubstr("cudnn")));
  request.message.mutable_options()->set_kernel(v1::ATTENTION_KERNEL_MATH);
  EXPECT_TRUE(ValidateRequest(request, limits).ok());
}

TEST(RequestValidationTest, MemoryPlanesAreUnimplementedAndSayWhy) {
  ExpectRefused(
      [](ReceivedRequest* r) {
        r->message.mutable_key()->mutable_memory()->set_region("r");
        r->tensors.key = TensorBytes();
      },
      absl::StatusCode::kUnimplemented,
      {"key.memory", "no memory plane enabled"});
  ExpectRefused(
      [](ReceivedRequest* r) { r->message.mutable_output()->set_region("r"); },
      absl::StatusCode::kUnimplemented, {"output", "enabled"});
}

TEST(RequestValidationTest, RequestIdsAreAtMost256Bytes) {
  EXPECT_TRUE(StatusOf([](ReceivedRequest* r) {
                r->message.set_request_id(std::string(256, 'i'));
              }).ok());
  ExpectInvalid(
      [](ReceivedRequest* r) {
        r->message.set_request_id(std::string(257, 'i'));
      },
      {"request_id", "256", "257"});
}

TEST(RequestValidationTest, OverALimitIsResourceExhausted) {
  RequestLimits limits;
  limits.max_request_bytes = 512;
  EXPECT_TRUE(ValidateRequest(GoodRequest(), limits).ok());
  limits.max_request_bytes = 511;
  absl::Status status = ValidateRequest(GoodRequest(), limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("511"), HasSubstr("512")));

  limits = RequestLimits();
  limits.max_message_bytes = 4096 + 127;
  status = ValidateRequest(GoodRequest(), limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

// GoodRequest as a stream begins: shapes without data.
ReceivedRequest StreamRequest() {
  ReceivedRequest request = GoodRequest();
  for (v1::Tensor* tensor :
       {request.message.mutable_query(), request.message.mutable_key(),
        request.message.mutable_value()}) {
    tensor->clear_source();
  }
  request.tensors = CallTensors();
  return request;
}

TEST(RequestValidationTest, AStreamsTensorsComeWithoutData) {
  const auto valid =
      ValidateRequest(StreamRequest(), {}, TensorTransport::kInChunks);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->shape.image_tokens, 4);
  EXPECT_EQ(valid->input_bytes, 384);
  EXPECT_EQ(valid->tensor_bytes, 512);

  const auto with_data =
      ValidateRequest(GoodRequest(), {}, TensorTransport::kInChunks);
  EXPECT_EQ(with_data.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(with_data.status().message()),
              AllOf(HasSubstr("query.data"), HasSubstr("128 bytes")));
}

TEST(RequestValidationTest, AStreamsOutputIsNotBoundedByAMessage) {
  RequestLimits limits;
  limits.max_message_bytes = 4096 + 127;
  EXPECT_EQ(ValidateRequest(GoodRequest(), limits).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(
      ValidateRequest(StreamRequest(), limits, TensorTransport::kInChunks)
          .ok());
  limits.max_request_bytes = 511;
  EXPECT_EQ(ValidateRequest(StreamRequest(), limits, TensorTransport::kInChunks)
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(RequestValidationTest, TensorsMayLieInRegionsEachByItself) {
  auto region = std::make_shared<MemoryRegion>();
  region->name = "r";
  region->memory.set_byte_size(256);
  region->memory.mutable_shared();
  RequestLimits limits;
  // None of them is bound by the response message, nor by the transport.
  limits.max_message_bytes = 4096;
  limits.regions = [&](const std::string&) -> absl::StatusOr<RegionPin> {
    return RegionPin{region, region};
  };
  ReceivedRequest request = StreamRequest();
  v1::MemorySlice* const query =
      request.message.mutable_query()->mutable_memory();
  query->set_region("r");
  query->set_byte_size(128);
  v1::MemorySlice* const output = request.message.mutable_output();
  output->set_region("r");
  output->set_offset(128);
  output->set_byte_size(128);
  SetData(request.message.mutable_key(), &request.tensors.key, 128);
  SetData(request.message.mutable_value(), &request.tensors.value, 128);
  const auto valid = ValidateRequest(request, limits);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->tensor_bytes, 512);
  EXPECT_EQ(valid->inline_bytes, 256);
  EXPECT_EQ(valid->regions.query.region, region);
  EXPECT_EQ(valid->regions.key.region, nullptr);
  EXPECT_EQ(valid->regions.output.offset, 128u);
  EXPECT_EQ(valid->regions.holds.size(), 1u);
}

TEST(RequestValidationTest, SizesThatOnlyTogetherOverflowAreRefused) {
  ReceivedRequest request = StreamRequest();
  for (v1::Tensor* tensor :
       {request.message.mutable_query(), request.message.mutable_key(),
        request.message.mutable_value()}) {
    SetShape(tensor, {1, int64_t{1} << 52, 4, 128});  // 2^62 bytes
  }
  const auto status =
      ValidateRequest(request, {}, TensorTransport::kInChunks).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("2^63"));
}

}  // namespace
}  // namespace ithaca::server
