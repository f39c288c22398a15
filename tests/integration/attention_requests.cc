#include "tests/integration/attention_requests.h"

#include <cstdint>
#include <string>
#include <vector>

#include "core/attention_call.h"
#include "ithaca/v1/attention.pb.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca {

namespace {

ithaca::v1::DataType ToProto(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return ithaca::v1::DATA_TYPE_FLOAT32;
    case DataType::kFloat16:
      return ithaca::v1::DATA_TYPE_FLOAT16;
    case DataType::kBFloat16:
      return ithaca::v1::DATA_TYPE_BFLOAT16;
  }
  return ithaca::v1::DATA_TYPE_UNSPECIFIED;
}

void Fill(const AttentionShape& shape, int64_t tokens, int64_t heads,
          const std::string& data, ithaca::v1::Tensor* tensor) {
  tensor->set_dtype(ToProto(shape.dtype));
  for (const int64_t dim : {shape.batch, tokens, heads, shape.head_dim}) {
    tensor->add_shape(dim);
  }
  tensor->set_data(data);
}

AttentionShape GoodShape() {
  AttentionShape shape;
  shape.image_tokens = 5;
  shape.text_tokens = 2;
  shape.valid_text_tokens = {2};
  shape.num_heads = 4;
  shape.num_kv_heads = 4;
  shape.head_dim = 16;
  return shape;
}

}  // namespace

ithaca::v1::AttentionRequest MakeRequest(const std::string& request_id,
                                         const AttentionShape& shape,
                                         const oracle::CallInputs& inputs) {
  ithaca::v1::AttentionRequest request;
  request.set_request_id(request_id);
  Fill(shape, shape.query_tokens(), shape.num_heads, inputs.query,
       request.mutable_query());
  Fill(shape, shape.key_tokens(), shape.num_kv_heads, inputs.key,
       request.mutable_key());
  Fill(shape, shape.key_tokens(), shape.num_kv_heads, inputs.value,
       request.mutable_value());
  ithaca::v1::SequenceLayout* layout = request.mutable_layout();
  layout->set_text_tokens(shape.text_tokens);
  layout->set_order(shape.order == TokenOrder::kTextFirst
                        ? ithaca::v1::TOKEN_ORDER_TEXT_FIRST
                        : ithaca::v1::TOKEN_ORDER_IMAGE_FIRST);
  for (const int64_t valid : shape.valid_text_tokens) {
    layout->add_valid_text_tokens(valid);
  }
  layout->set_image_queries_only(shape.image_queries_only);
  return request;
}

ithaca::v1::AttentionRequest GoodRequest(const std::string& request_id,
                                         double base) {
  const AttentionShape shape = GoodShape();
  return MakeRequest(request_id, shape,
                     oracle::PickInputs(shape, [&](int64_t b, int64_t t,
                                                   int64_t h, int64_t /*d*/) {
                       return base + oracle::Tag(shape, b, t, h);
                     }));
}

std::string WhatIsWrong(const ithaca::v1::AttentionResponse& response,
                        double base) {
  const AttentionShape shape = GoodShape();
  const std::vector<double> expected = oracle::PickTagOutput(shape);
  const std::vector<double> actual =
      oracle::Decode(shape.dtype, response.output().data());
  if (actual.size() != expected.size()) {
    return "expected " + std::to_string(expected.size()) + " elements, got " +
           std::to_string(actual.size());
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] != base + expected[i]) {
      return "element " + std::to_string(i) + ": expected " +
             std::to_string(base + expected[i]) + ", got " +
             std::to_string(actual[i]);
    }
  }
  return "";
}

}  // namespace ithaca
