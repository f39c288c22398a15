#include "worker/socket_test_messages.h"

#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

class SocketTestMessagesTest : public testing::Test {
 protected:
  SocketTestMessagesTest() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0);
  }
  ~SocketTestMessagesTest() override {
    close(ends_[0]);
    close(ends_[1]);
  }

  int ends_[2] = {-1, -1};
};

TEST_F(SocketTestMessagesTest, ACallArrivesAsItWasSent) {
  RankTestCall sent;
  sent.call_number = 7;
  sent.shape.dtype = DataType::kBFloat16;
  sent.shape.batch = 2;
  sent.shape.image_tokens = 11;
  sent.shape.text_tokens = 5;
  sent.shape.valid_text_tokens = {5, 3};
  sent.shape.order = TokenOrder::kTextFirst;
  sent.shape.image_queries_only = true;
  sent.shape.num_heads = 8;
  sent.shape.num_kv_heads = 2;
  sent.shape.head_dim = 64;
  sent.options.softmax_scale = 0.25;
  sent.options.precision = CommunicationPrecision::kInt8;
  sent.tensors.image_query = "query";
  sent.tensors.text_value = std::string("\0value", 6);
  sent.tensors.text_output = "\xff";
  ASSERT_TRUE(SendCall(ends_[0], sent));
  RankTestCall got;
  ASSERT_TRUE(ReceiveCall(ends_[1], &got));
  EXPECT_EQ(got.call_number, 7);
  EXPECT_EQ(got.shape, sent.shape);
  EXPECT_EQ(got.options, sent.options);
  EXPECT_EQ(got.tensors.image_query, "query");
  EXPECT_EQ(got.tensors.image_key, "");
  EXPECT_EQ(got.tensors.text_value, sent.tensors.text_value);
  EXPECT_EQ(got.tensors.text_output, "\xff");
}

TEST_F(SocketTestMessagesTest, AnAnswerKeepsItsReportOrItsError) {
  RankTestAnswer sent;
  RankReport report;
  report.stage_seconds[3] = 0.5;
  report.communication_bytes = 99;
  report.kernel = AttentionKernelKind::kCudnn;
  sent.report = report;
  sent.image_output = "rows";
  ASSERT_TRUE(SendAnswer(ends_[0], sent));
  RankTestAnswer got;
  ASSERT_TRUE(ReceiveAnswer(ends_[1], &got));
  ASSERT_TRUE(got.report.ok());
  EXPECT_EQ(got.report->stage_seconds, report.stage_seconds);
  EXPECT_EQ(got.report->communication_bytes, 99);
  EXPECT_EQ(got.report->kernel, AttentionKernelKind::kCudnn);
  EXPECT_EQ(got.image_output, "rows");

  sent.report = absl::UnimplementedError("no such kernel");
  ASSERT_TRUE(SendAnswer(ends_[0], sent));
  ASSERT_TRUE(ReceiveAnswer(ends_[1], &got));
  EXPECT_EQ(got.report.status(), absl::UnimplementedError("no such kernel"));
}

TEST_F(SocketTestMessagesTest, TheOtherSidesEndIsSeen) {
  shutdown(ends_[0], SHUT_RDWR);
  RankTestCall call;
  EXPECT_FALSE(ReceiveCall(ends_[1], &call));
  EXPECT_FALSE(SendCall(ends_[1], call));
}

}  // namespace
}  // namespace ithaca
