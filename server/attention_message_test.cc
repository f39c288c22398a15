#include "server/attention_message.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/stubs/logging.h"
#include "ithaca/v1/attention.pb.h"
#include "server/tensor_bytes.h"
#include "server/wire_reader.h"

namespace ithaca::server {
namespace {

using ithaca::v1::AttentionRequest;
using ithaca::v1::AttentionResponse;
using ithaca::v1::Tensor;

TensorBytes InPieces(const std::string& text, size_t piece_size) {
  TensorBytes bytes;
  for (size_t at = 0; at < text.size(); at += piece_size) {
    bytes.Append(grpc::Slice(text.substr(at, piece_size)));
  }
  return bytes;
}

// What the generated parser makes of a message, in the form of
// ParseAttentionRequest.
bool ParseByGeneratedCode(const std::string& text, AttentionRequest* message,
                          std::vector<std::string>* data) {
  if (!message->ParseFromString(text)) return false;
  for (Tensor* tensor : {message->mutable_query(), message->mutable_key(),
                         message->mutable_value()}) {
    data->push_back(tensor->data());
    if (tensor->source_case() == Tensor::kData) tensor->set_data("");
  }
  return true;
}

void ExpectSameAsGenerated(const std::string& text, size_t piece_size) {
  AttentionRequest expected;
  std::vector<std::string> data;
  const bool valid = ParseByGeneratedCode(text, &expected, &data);
  const TensorBytes bytes = InPieces(text, piece_size);
  ReceivedRequest received;
  const absl::Status status = ParseAttentionRequest(bytes, &received);
  ASSERT_EQ(status.ok(), valid) << status << "\n"
                                << testing::PrintToString(text);
  if (!valid) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return;
  }
  // Present or not, as they came: the expected ones were made by mutable_*.
  received.message.mutable_query();
  received.message.mutable_key();
  received.message.mutable_value();
  received.message.DiscardUnknownFields();
  expected.DiscardUnknownFields();
  EXPECT_EQ(received.message.SerializeAsString(), expected.SerializeAsString());
  EXPECT_EQ(received.tensors.query.Flatten(), data[0]);
  EXPECT_EQ(received.tensors.key.Flatten(), data[1]);
  EXPECT_EQ(received.tensors.value.Flatten(), data[2]);
}

class RandomMessages {
 public:
  explicit RandomMessages(uint32_t seed) : random_(seed) {}

  size_t Below(size_t n) { return random_() % n; }

  std::string Bytes(size_t below) {
    std::string bytes(Below(below), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  // Fields in any order, repeated, some unknown, some of a wrong wire type.
  std::string Request() {
    std::string text;
    for (size_t i = Below(9); i > 0; --i) {
      switch (Below(9)) {
        case 0:
          AppendLengthDelimited(1, std::string(Below(20), 'r'), &text);
          break;
        case 1: {
          ithaca::v1::SequenceLayout layout;
          layout.set_text_tokens(static_cast<int64_t>(Below(9)));
          layout.add_valid_text_tokens(static_cast<int64_t>(Below(300)));
          AppendLengthDelimited(5, layout.SerializeAsString(), &text);
          break;
        }
        case 2: {
          ithaca::v1::AttentionOptions options;
          options.set_softmax_scale(0.5);
          AppendLengthDelimited(6, options.SerializeAsString(), &text);
          break;
        }
        case 3:
          AppendUnknown(&text);
          break;
        default:
          AppendLengthDelimited(2 + static_cast<uint32_t>(Below(3)), Tensor(),
                                &text);
      }
    }
    return text;
  }

 private:
  std::string Tensor() {
    std::string text;
    for (size_t i = Below(7); i > 0; --i) {
      switch (Below(7)) {
        case 0:
          AppendTag(1, WireType::kVarint, &text);
          AppendVarint(Below(200), &text);
          break;
        case 1:
          AppendTag(2, WireType::kVarint, &text);
          AppendVarint(random_(), &text);
          break;
        case 2:
          AppendLengthDelimited(2, "\x01\x80\x02\x03", &text);  // packed
          break;
        case 3: {
          ithaca::v1::MemorySlice memory;
          memory.set_region("region");
          if (Below(2) == 0) memory.set_offset(Below(1000));
          AppendLengthDelimited(4, memory.SerializeAsString(), &text);
          break;
        }
        case 4:
          AppendUnknown(&text);
          break;
        default:
          AppendLengthDelimited(3, Bytes(100), &text);
      }
    }
    return text;
  }

  void AppendUnknown(std::string* text) {
    const uint32_t field = 1 + static_cast<uint32_t>(Below(30));
    switch (Below(4)) {
      case 0:
        AppendTag(field, WireType::kVarint, text);
        AppendVarint(random_(), text);
        break;
      case 1:
        AppendTag(field, WireType::kFixed64, text);
        text->append(8, 'x');
        break;
      case 2:
        AppendTag(field, WireType::kFixed32, text);
        text->append(4, 'y');
        break;
      default:
        AppendTag(field, WireType::kStartGroup, text);
        AppendLengthDelimited(1, Bytes(10), text);
        AppendTag(field, WireType::kEndGroup, text);
    }
  }

  std::mt19937 random_;
};

TEST(AttentionMessageTest, ReadsAnyLegalEncodingAsTheGeneratedParserDoes) {
  const google::protobuf::LogSilencer silence;
  RandomMessages messages(1);
  for (int i = 0; i < 4000; ++i) {
    ExpectSameAsGenerated(messages.Request(), 1 + messages.Below(40));
    if (HasFailure()) return;
  }
}

TEST(AttentionMessageTest, RefusesAnyMutationThatTheGeneratedParserRefuses) {
  const google::protobuf::LogSilencer silence;
  RandomMessages messages(2);
  for (int i = 0; i < 20000; ++i) {
    std::string text = messages.Request();
    if (text.empty()) continue;
    for (size_t mutations = 1 + messages.Below(3); mutations > 0; --mutations) {
      const size_t at = messages.Below(text.size());
      switch (messages.Below(3)) {
        case 0:
          text[at] = static_cast<char>(messages.Below(256));
          break;
        case 1:
          text.insert(at, 1, static_cast<char>(messages.Below(256)));
          break;
        default:
          text.resize(at + 1);
      }
    }
    ExpectSameAsGenerated(text, 1 + messages.Below(40));
    if (HasFailure()) return;
  }
}

TEST(AttentionMessageTest, TensorDataIsNotCopied) {
  AttentionRequest request;
  request.mutable_query()->set_data(std::string(100000, 'q'));
  const std::string text = request.SerializeAsString();
  TensorBytes bytes;
  bytes.Append(grpc::Slice(text));
  ReceivedRequest received;
  ASSERT_TRUE(ParseAttentionRequest(bytes, &received).ok());
  ASSERT_EQ(received.tensors.query.pieces().size(), 1u);
  const uint8_t* const begin = received.tensors.query.pieces()[0].begin();
  EXPECT_GE(begin, bytes.pieces()[0].begin());
  EXPECT_LT(begin, bytes.pieces()[0].end());
}

TEST(AttentionMessageTest, TheLastSourceOfATensorWins) {
  AttentionRequest with_data;
  with_data.mutable_query()->set_data("data");
  AttentionRequest with_memory;
  with_memory.mutable_query()->mutable_memory()->set_region("r");

  ReceivedRequest received;
  TensorBytes bytes = InPieces(
      with_data.SerializeAsString() + with_memory.SerializeAsString(), 3);
  ASSERT_TRUE(ParseAttentionRequest(bytes, &received).ok());
  EXPECT_EQ(received.message.query().source_case(), Tensor::kMemory);
  EXPECT_TRUE(received.tensors.query.empty());

  received = {};
  bytes = InPieces(
      with_memory.SerializeAsString() + with_data.SerializeAsString(), 3);
  ASSERT_TRUE(ParseAttentionRequest(bytes, &received).ok());
  EXPECT_EQ(received.message.query().source_case(), Tensor::kData);
  EXPECT_EQ(received.tensors.query.Flatten(), "data");
}

TEST(AttentionMessageTest, RefusesARequestIdThatIsNotUtf8ByName) {
  std::string text;
  AppendLengthDelimited(1, "a\xff", &text);
  ReceivedRequest received;
  const absl::Status status =
      ParseAttentionRequest(InPieces(text, 100), &received);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("request_id"), absl::string_view::npos);
}

TEST(AttentionMessageTest, BoundsWhatItCopies) {
  std::string valid_lengths(2 << 20, '\x01');
  std::string layout;
  AppendLengthDelimited(3, valid_lengths, &layout);
  std::string text;
  AppendLengthDelimited(5, layout, &text);
  ReceivedRequest received;
  EXPECT_EQ(ParseAttentionRequest(InPieces(text, 1 << 16), &received).code(),
            absl::StatusCode::kResourceExhausted);

  std::string empty_tensors;
  for (int i = 0; i < (1 << 20); ++i) empty_tensors += std::string("\x12\0", 2);
  EXPECT_EQ(
      ParseAttentionRequest(InPieces(empty_tensors, 1 << 16), &received).code(),
      absl::StatusCode::kResourceExhausted);
}

TEST(AttentionMessageTest, TheResponseParsesAndItsOutputIsNotCopied) {
  TensorBytes output;
  const std::string data(50000, 'o');
  output.Append(grpc::Slice(data.substr(0, 20000)));
  output.Append(grpc::Slice(data.substr(20000)));
  ithaca::v1::ExecutionReport report;
  report.set_group("g");
  (*report.mutable_stage_seconds())["attention"] = 0.25;
  const grpc::ByteBuffer buffer = MakeAttentionResponse(
      "id", ithaca::v1::DATA_TYPE_FLOAT32, {1, 50, 250, 1}, output, report);

  TensorBytes bytes;
  ASSERT_TRUE(FromByteBuffer(buffer, &bytes));
  EXPECT_EQ(bytes.pieces().back().end(), output.pieces().back().end());
  AttentionResponse response;
  ASSERT_TRUE(response.ParseFromString(bytes.Flatten()));
  EXPECT_EQ(response.request_id(), "id");
  EXPECT_EQ(response.output().dtype(), ithaca::v1::DATA_TYPE_FLOAT32);
  EXPECT_EQ(std::vector<int64_t>(response.output().shape().begin(),
                                 response.output().shape().end()),
            (std::vector<int64_t>{1, 50, 250, 1}));
  EXPECT_EQ(response.output().data(), data);
  EXPECT_EQ(response.report().group(), "g");
  EXPECT_EQ(response.report().stage_seconds().at("attention"), 0.25);
}

}  // namespace
}  // namespace ithaca::server
