#include "client/cli/call_flags.h"

#include <CLI/CLI.hpp>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/enum_flag.h"

namespace ithaca::client {
namespace {

constexpr char kTensorGroup[] = "Tensors";
constexpr char kOptionGroup[] = "Attention";

std::string ShapeHelp() {
  std::string help = "Shape of a real model's call:";
  for (const NamedShape& shape : NamedShapes()) {
    absl::StrAppend(
        &help, "\n", absl::string_view(shape.name.data(), shape.name.size()),
        ": ", absl::string_view(shape.what.data(), shape.what.size()), " (",
        shape.Shape().Text(), ")");
  }
  return help;
}

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const NamedShape& shape : NamedShapes()) names.emplace_back(shape.name);
  return names;
}

void AddCount(CLI::App* command, const char* name,
              std::optional<int64_t>* value, const char* help) {
  command->add_option(name, *value, help)->group(kTensorGroup);
}

// Turns a name of `values` into its number.
CLI::Validator NameToNumber(const std::map<std::string, int>& values,
                            const std::string& names) {
  return CLI::Validator(
      [values, names](std::string& text) -> std::string {
        const auto found = values.find(absl::AsciiStrToLower(text));
        if (found == values.end()) {
          return absl::StrCat("expected one of ", names, "; got '", text, "'");
        }
        text = std::to_string(found->second);
        return "";
      },
      /*validator_desc=*/"");
}

// `value` is an int or an optional one.
template <typename Enum, typename Value>
void AddEnum(CLI::App* command, const char* name, const char* prefix,
             const char* group, Value* value, const std::string& help) {
  const auto values = EnumFlagValues<Enum>(prefix);
  std::string names;
  for (const auto& [spelling, number] : values) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", spelling);
  }
  command->add_option(name, *value, absl::StrCat(help, ": ", names))
      ->transform(NameToNumber(values, names))
      ->type_name("NAME")
      ->group(group);
}

}  // namespace

bool CallFlags::DescribesTensors() const {
  return batch || image_tokens || num_heads || num_kv_heads || head_dim ||
         dtype;
}

CallShape CallFlags::Shape() const {
  CallShape result = FindNamedShape(shape)->Shape();
  result.batch = batch.value_or(result.batch);
  result.image_tokens = image_tokens.value_or(result.image_tokens);
  result.text_tokens = text_tokens.value_or(result.text_tokens);
  result.valid_text_tokens = valid_text_tokens;
  // Fewer query heads alone mean fewer key/value heads too.
  result.num_heads = num_heads.value_or(result.num_heads);
  result.num_kv_heads = num_kv_heads.value_or(result.num_heads);
  result.head_dim = head_dim.value_or(result.head_dim);
  if (dtype) result.dtype = static_cast<v1::DataType>(*dtype);
  if (order) result.order = static_cast<v1::TokenOrder>(*order);
  result.image_queries_only = image_queries_only;
  return result;
}

v1::AttentionOptions CallFlags::Options() const {
  v1::AttentionOptions options;
  options.set_communication_precision(
      static_cast<v1::CommunicationPrecision>(precision));
  options.set_head_schedule(static_cast<v1::HeadSchedule>(schedule));
  options.set_kernel(static_cast<v1::AttentionKernel>(kernel));
  if (softmax_scale) options.set_softmax_scale(*softmax_scale);
  return options;
}

void AddCallFlags(CLI::App* command, CallFlags* flags) {
  command->add_option("--shape", flags->shape, ShapeHelp())
      ->check(CLI::IsMember(ShapeNames()).description(""))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(kTensorGroup);
  AddCount(command, "--batch", &flags->batch, "Batch elements");
  AddCount(command, "--image-tokens", &flags->image_tokens,
           "Image tokens of each batch element");
  AddCount(command, "--text-tokens", &flags->text_tokens,
           "Text tokens of each batch element, padding included");
  command
      ->add_option("--valid-text", flags->valid_text_tokens,
                   "Valid text tokens of each batch element: N,N,... "
                   "(default: all)")
      ->delimiter(',')
      ->group(kTensorGroup);
  AddCount(command, "--heads", &flags->num_heads, "Query heads");
  AddCount(command, "--kv-heads", &flags->num_kv_heads,
           "Key/value heads, a divisor of the query heads (default: as many)");
  AddCount(command, "--head-dim", &flags->head_dim, "Elements of a head");
  AddEnum<v1::DataType>(command, "--dtype", kDataTypePrefix, kTensorGroup,
                        &flags->dtype, "Element type");
  AddEnum<v1::TokenOrder>(command, "--order", kTokenOrderPrefix, kTensorGroup,
                          &flags->order, "Where text is on the token axis");
  command
      ->add_flag("--image-queries-only", flags->image_queries_only,
                 "The query holds image tokens only")
      ->group(kTensorGroup);
  command->add_option("--seed", flags->seed, "Seed of the random tensors")
      ->capture_default_str()
      ->group(kTensorGroup);

  AddEnum<v1::CommunicationPrecision>(command, "--precision", kPrecisionPrefix,
                                      kOptionGroup, &flags->precision,
                                      "Encoding between workers");
  AddEnum<v1::HeadSchedule>(command, "--schedule", kSchedulePrefix,
                            kOptionGroup, &flags->schedule,
                            "How heads are exchanged");
  AddEnum<v1::AttentionKernel>(command, "--kernel", kKernelPrefix, kOptionGroup,
                               &flags->kernel, "Attention kernel");
  command
      ->add_option("--scale", flags->softmax_scale,
                   "Softmax scale (default: 1/sqrt(head dim))")
      ->group(kOptionGroup);
}

}  // namespace ithaca::client
