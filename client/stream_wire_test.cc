#include "client/stream_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace ithaca::client {
namespace {

using ::testing::HasSubstr;

Tensor Filled(std::vector<int64_t> shape, int seed) {
  Tensor tensor(v1::DATA_TYPE_FLOAT16, std::move(shape));
  for (size_t i = 0; i < tensor.bytes().size(); ++i) {
    tensor.bytes()[i] = static_cast<std::byte>(seed + i * 7 + (i >> 9));
  }
  return tensor;
}

std::string BytesOf(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes().data()),
          tensor.bytes().size()};
}

grpc::Slice Borrow(const TensorView& tensor) {
  return {tensor.bytes.data(), tensor.bytes.size(), grpc::Slice::STATIC_SLICE};
}

grpc::ByteBuffer Message(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices(1);
  for (size_t at = 0; at < bytes.size(); at += piece) {
    slices.emplace_back(bytes.substr(at, piece));
  }
  return {slices.data(), slices.size()};
}

TEST(StreamRequestWriterTest, ChunksFollowTheRequestInOrderWithoutGaps) {
  const Tensor query = Filled({1, 1500, 4, 200}, 1);  // 2.3 MiB
  const Tensor key = Filled({1, 3, 2, 200}, 2);
  const Tensor value = Filled({1, 0, 2, 200}, 3);
  const AttentionArguments arguments{.query = query.view(),
                                     .key = key.view(),
                                     .value = value.view(),
                                     .request_id = "mine"};
  StreamRequestWriter writer(arguments, Borrow);
  std::string of_query;
  std::string of_key;
  int messages = 0;
  while (auto message = writer.Next()) {
    grpc::Slice all;
    ASSERT_TRUE(message->DumpToSingleSlice(&all).ok());
    v1::StreamAttentionRequest part;
    ASSERT_TRUE(part.ParseFromArray(all.begin(), static_cast<int>(all.size())));
    if (messages++ == 0) {
      EXPECT_EQ(part.request().request_id(), "mine");
      EXPECT_THAT(part.request().key().shape(),
                  ::testing::ElementsAre(1, 3, 2, 200));
      EXPECT_FALSE(part.request().query().has_data());
      continue;
    }
    const bool is_query = part.chunk().role() == v1::TENSOR_ROLE_QUERY;
    std::string* tensor = is_query ? &of_query : &of_key;
    EXPECT_EQ(part.chunk().offset(), tensor->size());
    EXPECT_LE(part.chunk().data().size(), 1u << 20);
    EXPECT_TRUE(!is_query || of_key.empty());
    tensor->append(part.chunk().data());
  }
  EXPECT_EQ(messages, 1 + 3 + 1);
  EXPECT_EQ(of_query, BytesOf(query));
  EXPECT_EQ(of_key, BytesOf(key));
}

TEST(StreamRequestWriterTest, ChunksReferToTheTensorsMemory) {
  const Tensor query = Filled({1, 1500, 4, 200}, 1);
  const AttentionArguments arguments{.query = query.view()};
  StreamRequestWriter writer(arguments, Borrow);
  writer.Next();
  size_t at = 0;
  while (auto message = writer.Next()) {
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(message->Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(static_cast<const void*>(slices[1].begin()),
              static_cast<const void*>(query.bytes().data() + at));
    at += slices[1].size();
  }
  EXPECT_EQ(at, query.bytes().size());
}

class StreamResponseReaderTest : public ::testing::Test {
 protected:
  StreamResponseReaderTest() {
    v1::AttentionResponse* response = parts_.emplace_back().mutable_response();
    response->set_request_id("mine");
    response->mutable_output()->set_dtype(query_.dtype());
    for (const int64_t d : query_.shape()) {
      response->mutable_output()->add_shape(d);
    }
    const std::string bytes = BytesOf(query_);
    for (size_t at = 0; at < bytes.size(); at += 400) {
      v1::TensorChunk* chunk = parts_.emplace_back().mutable_chunk();
      chunk->set_role(v1::TENSOR_ROLE_OUTPUT);
      chunk->set_offset(at);
      chunk->set_data(bytes.substr(at, 400));
    }
  }

  absl::StatusOr<AttentionResult> Read(size_t piece = 16,
                                       std::span<std::byte> destination = {}) {
    StreamResponseReader reader(
        OutputOf({.query = query_.view(), .output = destination}));
    for (const auto& part : parts_) {
      grpc::ByteBuffer message = Message(part.SerializeAsString(), piece);
      absl::Status status = reader.Take(&message);
      if (!status.ok()) return status;
    }
    return reader.Finish();
  }

  const Tensor query_ = Filled({1, 10, 4, 25}, 1);  // 2000 bytes, 5 chunks
  std::vector<v1::StreamAttentionResponse> parts_;
};

TEST_F(StreamResponseReaderTest, MessagesCutAnywhereAreReadWhole) {
  for (const size_t piece : {1ul, 3ul, 64ul, 4096ul}) {
    const auto result = Read(piece);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->request_id, "mine");
    EXPECT_EQ(BytesOf(result->output), BytesOf(query_));
  }
}

TEST_F(StreamResponseReaderTest, OutputGoesIntoTheCallersMemory) {
  std::vector<std::byte> mine(query_.bytes().size());
  const auto result = Read(64, mine);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output.bytes().data(), mine.data());
  EXPECT_EQ(BytesOf(result->output), BytesOf(query_));
}

TEST_F(StreamResponseReaderTest, AnswersOutOfPlaceAreRefused) {
  using Parts = std::vector<v1::StreamAttentionResponse>;
  const std::pair<std::function<void(Parts*)>, const char*> faults[] = {
      {[](Parts* p) { std::swap((*p)[1], (*p)[2]); }, "offset 0"},
      {[](Parts* p) { p->erase(p->begin() + 2); }, "offset 400"},
      {[](Parts* p) { p->insert(p->begin() + 2, (*p)[1]); }, "offset 400"},
      {[](Parts* p) { p->pop_back(); }, "ended after 1600"},
      {[](Parts* p) { p->resize(1); }, "ended after 0"},
      {[](Parts* p) { p->clear(); }, "without a response"},
      {[](Parts* p) { std::swap((*p)[0], (*p)[1]); }, "starts with a chunk"},
      {[](Parts* p) { p->push_back((*p)[0]); }, "two responses"},
      {[](Parts* p) {
         (*p)[3].mutable_chunk()->set_role(v1::TENSOR_ROLE_QUERY);
       },
       "got role 1"},
      {[](Parts* p) { (*p)[5].mutable_chunk()->mutable_data()->append("x"); },
       "at most 400 bytes"},
      {[](Parts* p) { (*p)[2].mutable_chunk()->set_offset(~uint64_t{0} - 10); },
       "offset 400"},
      {[](Parts* p) {
         (*p)[0].mutable_response()->mutable_output()->set_data("inline");
       },
       "without data"},
      {[](Parts* p) {
         (*p)[0].mutable_response()->mutable_output()->set_shape(1, 11);
       },
       "[1, 10, 4, 25]"},
  };
  const Parts good = parts_;
  for (const auto& [spoil, message] : faults) {
    parts_ = good;
    spoil(&parts_);
    const auto result = Read();
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal) << message;
    EXPECT_THAT(result.status().message(), HasSubstr(message));
  }
}

TEST_F(StreamResponseReaderTest, NoFlippedByteReadsOrWritesOutside) {
  const std::string message = parts_[1].SerializeAsString();
  grpc::ByteBuffer first = Message(parts_[0].SerializeAsString(), 64);
  for (size_t at = 0; at < 16; ++at) {
    for (int flip = 1; flip < 256; flip *= 2) {
      StreamResponseReader reader(OutputOf({.query = query_.view()}));
      grpc::ByteBuffer head = first;
      ASSERT_TRUE(reader.Take(&head).ok());
      std::string damaged = message;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      grpc::ByteBuffer buffer = Message(damaged, 13);
      if (reader.Take(&buffer).ok()) {
        EXPECT_FALSE(reader.Finish().ok());
      }
    }
  }
}

}  // namespace
}  // namespace ithaca::client
