// "builtin:..." to a GptConfig.
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "frontend/gpt_config.h"
#include "ir/choices.h"
#include "ir/diagnostic.h"
#include "ir/parse_number.h"

namespace shardc {
namespace {

constexpr std::string_view kPrefix = "builtin:";

struct Preset {
  std::string name;
  int64_t layers, hidden, heads, vocab, positions;
};

// gpt2*: the configs of HF's checkpoints of these names. gpt3-*: Brown et al. 2020, table 2.1, with
// the vocabulary that Megatron pads to. megatron-t530b: Smith et al. 2022, section 3.1.
const std::vector<Preset>& Presets() {
  static const std::vector<Preset> presets = {
      {"gpt2", 12, 768, 12, 50257, 1024},
      {"gpt2-medium", 24, 1024, 16, 50257, 1024},
      {"gpt2-large", 36, 1280, 20, 50257, 1024},
      {"gpt2-xl", 48, 1600, 25, 50257, 1024},
      {"gpt3-6.7b", 32, 4096, 32, 51200, 2048},
      {"gpt3-175b", 96, 12288, 96, 51200, 2048},
      {"megatron-t530b", 105, 20480, 128, 51200, 2048},
  };
  return presets;
}

[[noreturn]] void Unknown(const std::string& where, const std::string& what,
                          const std::string& fix) {
  throw Diagnostic("E1501", ExitCode::kBadModel, where, what, fix);
}

using Setter = std::function<void(const std::string& where, const std::string& value)>;

template <typename T>
Setter Number(T& out) {
  return [&out](const std::string& where, const std::string& value) {
    const std::optional<T> number = ParseNumber<T>(value);
    if (!number) {
      Unknown(where, StrCat("'", value, "' is not a number that fits here"),
              std::is_integral_v<T> ? "give an integer" : "give a number");
    }
    out = *number;
  };
}

template <typename T>
Setter Choice(T& out, std::vector<std::pair<std::string, T>> choices) {
  return [&out, choices](const std::string& where, const std::string& value) {
    std::vector<std::string> names;
    for (const auto& [name, choice] : choices) {
      if (name == value) {
        out = choice;
        return;
      }
      names.push_back(name);
    }
    Unknown(where, StrCat("'", value, "' is not a value of this key"),
            Choices(value, "known", names));
  };
}

std::map<std::string, Setter> Keys(GptConfig& c) {
  std::vector<std::pair<std::string, bool>> boolean = {
      {"true", true}, {"false", false}, {"1", true}, {"0", false}};
  return {
      {"layers", Number(c.layers)},
      {"hidden", Number(c.hidden)},
      {"heads", Number(c.heads)},
      {"kv_heads", Number(c.kv_heads)},
      {"ffn", Number(c.ffn)},
      {"vocab", Number(c.vocab)},
      {"max_positions", Number(c.max_positions)},
      {"batch", Number(c.batch)},
      {"seq", Number(c.seq)},
      {"init_std", Number(c.init_std)},
      {"eps", Number(c.eps)},
      {"rope_theta", Number(c.rope_theta)},
      {"seed", Number(c.seed)},
      {"dropout", Number(c.dropout)},
      {"attention_dropout", Number(c.attention_dropout)},
      {"activation", Choice<GptActivation>(c.activation, {{"gelu_tanh", GptActivation::kGeluTanh},
                                                          {"gelu", GptActivation::kGelu},
                                                          {"relu", GptActivation::kRelu},
                                                          {"silu", GptActivation::kSilu},
                                                          {"swiglu", GptActivation::kSwiGlu}})},
      {"norm", Choice<GptNorm>(
                   c.norm, {{"layer_norm", GptNorm::kLayerNorm}, {"rms_norm", GptNorm::kRmsNorm}})},
      {"positions", Choice<GptPositions>(c.positions, {{"learned", GptPositions::kLearned},
                                                       {"rope", GptPositions::kRope},
                                                       {"none", GptPositions::kNone}})},
      {"tied", Choice(c.tied, boolean)},
      {"bias", Choice(c.bias, boolean)},
      {"qkv", Choice<bool>(c.fused_qkv, {{"fused", true}, {"separate", false}})},
      {"dtype", Choice<DType>(c.dtype, {{"f32", DType::kF32}, {"f64", DType::kF64}})},
  };
}

// Largest size of any dim: products of three of them stay within int64.
constexpr int64_t kMaxDim = int64_t{1} << 20;

void CheckSizes(const GptConfig& c, const std::string& where) {
  auto fail = [&](const std::string& what, const std::string& fix) {
    throw Diagnostic("E1502", ExitCode::kBadModel, where, what, fix);
  };
  std::pair<const char*, int64_t> sizes[] = {
      {"layers", c.layers}, {"hidden", c.hidden},     {"heads", c.heads},
      {"vocab", c.vocab},   {"kv_heads", c.kv_heads}, {"ffn", c.ffn},
      {"batch", c.batch},   {"seq", c.seq},           {"max_positions", c.max_positions}};
  for (const auto& [key, size] : sizes) {
    if (size < 1 || size > kMaxDim) {
      fail(StrCat(key, "=", size, " is out of range"), StrCat("give a size from 1 to ", kMaxDim));
    }
  }
  if (c.hidden % c.heads != 0) {
    fail(StrCat("hidden=", c.hidden, " is not a multiple of heads=", c.heads),
         "a head has hidden / heads columns");
  }
  if (c.heads % c.kv_heads != 0) {
    fail(StrCat("heads=", c.heads, " is not a multiple of kv_heads=", c.kv_heads),
         "each kv head serves heads / kv_heads query heads");
  }
  if (c.positions == GptPositions::kLearned && c.seq > c.max_positions) {
    fail(StrCat("seq=", c.seq, " is more than max_positions=", c.max_positions),
         "bind a shorter seq or give max_positions");
  }
  if (c.positions == GptPositions::kRope && c.head_dim() % 2 != 0) {
    fail(StrCat("positions=rope with the odd head size ", c.head_dim()),
         "hidden / heads must be even");
  }
  for (double ratio : {c.dropout, c.attention_dropout}) {
    if (!(ratio >= 0 && ratio < 1)) fail(StrCat("a dropout of ", ratio, " is not in [0, 1)"), "");
  }
  for (double number : {c.init_std, c.eps, c.rope_theta}) {
    if (!(std::abs(number) <= std::numeric_limits<float>::max())) {
      fail("init_std, eps and rope_theta must be finite", "");
    }
  }
  if (!(c.init_std >= 0 && c.eps > 0 && c.rope_theta > 0)) {
    fail("init_std must not be negative, eps and rope_theta must be positive", "");
  }
}

// With the sizes of the preset of that name; "gpt" has none.
GptConfig PresetConfig(const std::string& name, const std::string& where) {
  GptConfig config;
  config.name = name;
  bool known = name == "gpt";
  for (const Preset& p : Presets()) {
    if (p.name != name) continue;
    known = true;
    config.layers = p.layers, config.hidden = p.hidden, config.heads = p.heads;
    config.vocab = p.vocab, config.max_positions = p.positions;
  }
  if (!known) {
    Unknown(where, StrCat("there is no builtin model '", name, "'"),
            Choices(name, "known", BuiltinNames()));
  }
  return config;
}

// Sets what "layers=2,hidden=64" gives.
void SetKeys(std::string_view list, const std::string& where, GptConfig& config) {
  std::map<std::string, Setter> keys = Keys(config);
  std::vector<std::string> key_names;
  for (const auto& [key, setter] : keys) key_names.push_back(key);
  std::set<std::string> given;
  while (!list.empty()) {
    size_t comma = list.find_first_of(",&");
    std::string_view item = list.substr(0, comma);
    list = comma == list.npos ? "" : list.substr(comma + 1);
    size_t equals = item.find('=');
    std::string key(item.substr(0, equals));
    auto setter = keys.find(key);
    if (setter == keys.end()) {
      Unknown(where, StrCat("there is no key '", key, "'"), Choices(key, "known", key_names));
    }
    if (!given.insert(key).second) {
      throw Diagnostic("E1501", ExitCode::kBadModel, where,
                       StrCat("key '", key, "' is given twice"), "give it once");
    }
    std::string value(equals == item.npos ? "" : item.substr(equals + 1));
    setter->second(StrCat(where, ": key '", key, "'"), value);
    if ((key == "seq" || key == "max_positions") &&
        (key == "seq" ? config.seq : config.max_positions) < 1) {
      throw Diagnostic("E1502", ExitCode::kBadModel, where,
                       StrCat(key, "=", value, " is out of range"), "give a positive size");
    }
  }
}

}  // namespace

const std::vector<std::string>& BuiltinNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out = {"gpt"};
    for (const Preset& p : Presets()) out.push_back(p.name);
    return out;
  }();
  return names;
}

bool IsBuiltin(std::string_view text) { return text.substr(0, kPrefix.size()) == kPrefix; }

GptConfig ParseBuiltin(std::string_view text, const std::map<std::string, int64_t>& bind) {
  const std::string where(text);
  if (IsBuiltin(text)) text.remove_prefix(kPrefix.size());
  const size_t question = text.find('?');
  GptConfig config = PresetConfig(std::string(text.substr(0, question)), where);
  const int64_t preset_positions = config.max_positions;
  config.seq = config.max_positions = 0;
  if (question != text.npos) SetKeys(text.substr(question + 1), where, config);
  if (config.max_positions == 0) {
    config.max_positions = config.name == "gpt" && config.seq > 0 ? config.seq : preset_positions;
  }
  if (config.seq == 0) config.seq = config.max_positions;
  const std::vector<std::string> symbols = {"batch", "seq"};
  for (const auto& [symbol, value] : bind) {
    if (symbol != "batch" && symbol != "seq") {
      Unknown(where, StrCat("--bind: the model has no symbol '", symbol, "'"),
              Choices(symbol, "known", symbols));
    }
    (symbol == "batch" ? config.batch : config.seq) = value;
  }
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.ffn == 0) config.ffn = 4 * config.hidden;
  CheckSizes(config, where);
  return config;
}

}  // namespace shardc
