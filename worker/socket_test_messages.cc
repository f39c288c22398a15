#include "worker/socket_test_messages.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "core/attention_call.h"

namespace ithaca {
namespace {

class Writer {
 public:
  explicit Writer(int socket) : socket_(socket) {}

  void Text(const std::string& text) {
    Number(text.size());
    Bytes(text.data(), text.size());
  }
  template <typename T>
  void Number(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    Bytes(&value, sizeof(value));
  }
  bool ok() const { return ok_; }

 private:
  void Bytes(const void* data, size_t size) {
    const char* next = static_cast<const char*>(data);
    while (ok_ && size > 0) {
      // No signal when the other side is gone.
      const ssize_t sent = send(socket_, next, size, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      ok_ = sent > 0;
      if (!ok_) break;
      next += sent;
      size -= static_cast<size_t>(sent);
    }
  }

  const int socket_;
  bool ok_ = true;
};

class Reader {
 public:
  explicit Reader(int socket) : socket_(socket) {}

  void Text(std::string* text) {
    size_t size = 0;
    Number(&size);
    text->resize(ok_ ? size : 0);
    Bytes(text->data(), text->size());
  }
  template <typename T>
  void Number(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    Bytes(value, sizeof(*value));
  }
  bool ok() const { return ok_; }

 private:
  void Bytes(void* data, size_t size) {
    char* next = static_cast<char*>(data);
    while (ok_ && size > 0) {
      const ssize_t got = recv(socket_, next, size, 0);
      if (got < 0 && errno == EINTR) continue;
      ok_ = got > 0;
      if (!ok_) break;
      next += got;
      size -= static_cast<size_t>(got);
    }
  }

  const int socket_;
  bool ok_ = true;
};

}  // namespace

bool SendCall(int socket, const RankTestCall& call) {
  Writer writer(socket);
  writer.Number(call.call_number);
  const AttentionShape& shape = call.shape;
  writer.Number(shape.dtype);
  for (const int64_t number :
       {shape.batch, shape.image_tokens, shape.text_tokens, shape.num_heads,
        shape.num_kv_heads, shape.head_dim}) {
    writer.Number(number);
  }
  writer.Number(shape.order);
  writer.Number(shape.image_queries_only);
  writer.Number(shape.valid_text_tokens.size());
  for (const int64_t valid : shape.valid_text_tokens) writer.Number(valid);
  writer.Number(call.options);
  const RankTensors& tensors = call.tensors;
  for (const std::string* text :
       {&tensors.image_query, &tensors.image_key, &tensors.image_value,
        &tensors.text_query, &tensors.text_key, &tensors.text_value,
        &tensors.image_output, &tensors.text_output}) {
    writer.Text(*text);
  }
  return writer.ok();
}

bool ReceiveCall(int socket, RankTestCall* call) {
  Reader reader(socket);
  reader.Number(&call->call_number);
  AttentionShape& shape = call->shape;
  reader.Number(&shape.dtype);
  for (int64_t* number :
       {&shape.batch, &shape.image_tokens, &shape.text_tokens, &shape.num_heads,
        &shape.num_kv_heads, &shape.head_dim}) {
    reader.Number(number);
  }
  reader.Number(&shape.order);
  reader.Number(&shape.image_queries_only);
  size_t batch = 0;
  reader.Number(&batch);
  if (!reader.ok()) return false;
  shape.valid_text_tokens.resize(batch);
  for (int64_t& valid : shape.valid_text_tokens) reader.Number(&valid);
  reader.Number(&call->options);
  RankTensors& tensors = call->tensors;
  for (std::string* text :
       {&tensors.image_query, &tensors.image_key, &tensors.image_value,
        &tensors.text_query, &tensors.text_key, &tensors.text_value,
        &tensors.image_output, &tensors.text_output}) {
    reader.Text(text);
  }
  return reader.ok();
}

bool SendAnswer(int socket, const RankTestAnswer& answer) {
  Writer writer(socket);
  writer.Number(answer.report.status().code());
  writer.Text(std::string(answer.report.status().message()));
  writer.Number(answer.report.ok() ? *answer.report : RankReport());
  writer.Text(answer.image_output);
  writer.Text(answer.text_output);
  return writer.ok();
}

bool ReceiveAnswer(int socket, RankTestAnswer* answer) {
  Reader reader(socket);
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;
  RankReport report;
  reader.Number(&code);
  reader.Text(&message);
  reader.Number(&report);
  reader.Text(&answer->image_output);
  reader.Text(&answer->text_output);
  if (!reader.ok()) return false;
  if (code == absl::StatusCode::kOk) {
    answer->report = report;
  } else {
    answer->report = absl::Status(code, message);
  }
  return true;
}

}  // namespace ithaca
