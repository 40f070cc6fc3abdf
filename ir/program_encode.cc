// SerializeBody: tables of strings, types and attribute sets, so that a model of many equal layers
// is small.
#include <bit>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "ir/program.h"
#include "program.pb.h"

namespace shardc {
namespace {

// Distinct keys, numbered in the order of first use.
class Table {
 public:
  // The key's number, and whether it is new.
  std::pair<uint32_t, bool> Add(std::string_view key) {
    if (auto it = index_.find(key); it != index_.end()) return {it->second, false};
    auto number = static_cast<uint32_t>(index_.size());
    index_.emplace(key, number);
    return {number, true};
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> index_;
};

// The raw bytes of what is added; lengths go before lists, so that different values have different
// keys.
class Key {
 public:
  void Clear() { bytes_.clear(); }
  void Int(int64_t v) { bytes_.append(reinterpret_cast<const char*>(&v), sizeof v); }
  void Byte(uint8_t v) { bytes_.push_back(static_cast<char>(v)); }
  void Text(std::string_view s) {
    Int(static_cast<int64_t>(s.size()));
    bytes_ += s;
  }
  template <typename List>
  void IntList(const List& list) {
    Int(static_cast<int64_t>(list.size()));
    for (auto v : list) Int(v);
  }
  void Axes(const AxisList& axes) {
    Byte(static_cast<uint8_t>(axes.size()));
    for (uint8_t a : axes) Byte(a);
  }
  std::string_view view() const { return bytes_; }

 private:
  std::string bytes_;
};

std::string_view RawBytes(const HostTensor& t) {
  return {reinterpret_cast<const char*>(t.raw()), static_cast<size_t>(t.bytes())};
}

void AddToKey(const Attribute& value, Key& key) {
  key.Byte(static_cast<uint8_t>(value.index()));
  if (auto* i = std::get_if<int64_t>(&value)) key.Int(*i);
  if (auto* d = std::get_if<double>(&value)) key.Int(std::bit_cast<int64_t>(*d));
  if (auto* b = std::get_if<bool>(&value)) key.Byte(*b);
  if (auto* s = std::get_if<std::string>(&value)) key.Text(*s);
  if (auto* list = std::get_if<Ints>(&value)) key.IntList(*list);
  if (auto* list = std::get_if<Strings>(&value)) {
    key.Int(static_cast<int64_t>(list->size()));
    for (const std::string& s : *list) key.Text(s);
  }
  if (auto* t = std::get_if<TensorPtr>(&value)) {
    key.Byte(static_cast<uint8_t>((*t)->dtype()));
    key.IntList((*t)->shape());
    key.Text(RawBytes(**t));
  }
}

void Encode(const Attribute& value, proto::Attribute* out) {
  if (auto* i = std::get_if<int64_t>(&value)) out->set_int_(*i);
  if (auto* d = std::get_if<double>(&value)) out->set_float_bits(std::bit_cast<uint64_t>(*d));
  if (auto* b = std::get_if<bool>(&value)) out->set_flag(*b);
  if (auto* s = std::get_if<std::string>(&value)) out->set_text(*s);
  if (auto* list = std::get_if<Ints>(&value)) {
    out->mutable_ints()->mutable_value()->Add(list->begin(), list->end());
  }
  if (auto* list = std::get_if<Strings>(&value)) {
    proto::Strings* texts = out->mutable_texts();
    for (const std::string& s : *list) texts->add_value(s);
  }
  if (auto* t = std::get_if<TensorPtr>(&value)) {
    proto::Tensor* tensor = out->mutable_tensor();
    tensor->set_dtype(static_cast<uint32_t>((*t)->dtype()));
    tensor->mutable_shape()->Add((*t)->shape().begin(), (*t)->shape().end());
    tensor->set_data(std::string(RawBytes(**t)));
  }
}

template <typename List>
void AddAxes(const List& axes, google::protobuf::RepeatedField<uint32_t>* out) {
  for (auto a : axes) out->Add(static_cast<uint32_t>(a));
}

class BodyEncoder {
 public:
  explicit BodyEncoder(const Program& program) : program_(program) { String(""); }

  std::string Encode() {
    for (const shardc::Buffer& b : program_.buffers) AddBuffer(b);
    for (const shardc::Instruction& i : program_.instructions) AddInstruction(i);
    for (const shardc::Collective& c : program_.collectives) AddCollective(c);
    AddNamed(program_.inputs, body_.mutable_inputs());
    AddNamed(program_.outputs, body_.mutable_outputs());
    AddNamed(program_.states, body_.mutable_states());
    body_.set_arena_bytes(program_.arena_bytes);
    body_.set_constants(program_.constants.data(), program_.constants.size());
    if (body_.ByteSizeLong() > std::numeric_limits<int>::max()) {
      throw Diagnostic("E3004", ExitCode::kVerification, "program",
                       StrCat("its ", program_.constants.size(),
                              " bytes of constants make it larger than the format's 2 GiB"),
                       "turn the model's large constants into parameters");
    }
    std::string bytes;
    SHARDC_CHECK(body_.SerializeToString(&bytes));
    return bytes;
  }

 private:
  uint32_t String(std::string_view s) {
    auto [number, fresh] = strings_.Add(s);
    if (fresh) body_.add_strings(std::string(s));
    return number;
  }

  uint32_t Type(const TensorType& type, const Shape& local_shape) {
    key_.Clear();
    key_.Byte(static_cast<uint8_t>(type.dtype));
    key_.IntList(type.shape);
    key_.Int(static_cast<int64_t>(type.sharding.dims.size()));
    for (const DimSharding& d : type.sharding.dims) {
      key_.Axes(d.axes);
      key_.Int(d.granule);
      key_.IntList(d.segments);
    }
    key_.Axes(type.sharding.partial_sum);
    key_.Axes(type.sharding.partial_max);
    key_.IntList(local_shape);
    auto [number, fresh] = types_.Add(key_.view());
    if (fresh) AddType(type, local_shape);
    return number;
  }

  void AddType(const TensorType& type, const Shape& local_shape) {
    proto::LocalType* out = body_.add_types();
    out->set_dtype(static_cast<uint32_t>(type.dtype));
    out->mutable_shape()->Add(type.shape.begin(), type.shape.end());
    for (const DimSharding& d : type.sharding.dims) {
      proto::Dim* dim = out->add_dims();
      AddAxes(d.axes, dim->mutable_axes());
      dim->set_granule(d.granule);
      dim->mutable_segments()->Add(d.segments.begin(), d.segments.end());
    }
    AddAxes(type.sharding.partial_sum, out->mutable_partial_sum());
    AddAxes(type.sharding.partial_max, out->mutable_partial_max());
    out->mutable_local_shape()->Add(local_shape.begin(), local_shape.end());
  }

  uint32_t AttributeSet(const shardc::Attributes& attrs) {
    key_.Clear();
    for (const auto& [name, value] : attrs.entries()) {
      key_.Text(name);
      AddToKey(value, key_);
    }
    auto [number, fresh] = attributes_.Add(key_.view());
    if (!fresh) return number;
    proto::Attributes* out = body_.add_attributes();
    for (const auto& [name, value] : attrs.entries()) {
      proto::Attribute* entry = out->add_entry();
      entry->set_name(String(name));
      shardc::Encode(value, entry);
    }
    return number;
  }

  void AddBuffer(const shardc::Buffer& b) {
    proto::Buffer* out = body_.add_buffers();
    out->set_type(Type(b.type, b.local_shape));
    out->set_space(static_cast<uint32_t>(b.space));
    out->set_offset(b.offset);
    out->set_bytes(b.bytes);
    out->set_name(String(b.name));
    out->set_alias_of(b.alias_of + 1);
  }

  void AddInstruction(const shardc::Instruction& i) {
    proto::Instruction* out = body_.add_instructions();
    out->set_op(String(i.op));
    out->set_attributes(AttributeSet(i.attrs));
    out->mutable_operands()->Add(i.operands.begin(), i.operands.end());
    out->mutable_results()->Add(i.results.begin(), i.results.end());
    out->set_collective(i.collective + 1);
    out->set_scratch(i.scratch + 1);
    out->set_phase(static_cast<uint32_t>(i.phase));
    out->set_site(String(i.site));
    out->set_flops(i.flops);
    out->set_bytes(i.bytes);
  }

  void AddCollective(const shardc::Collective& c) {
    proto::Collective* out = body_.add_collectives();
    out->set_id(c.id);
    out->set_kind(static_cast<uint32_t>(c.kind));
    out->set_max(c.max);
    AddAxes(c.axes, out->mutable_axes());
    out->set_dtype(static_cast<uint32_t>(c.dtype));
    out->set_elements(c.elements);
    out->set_op(String(c.op));
    for (const std::string& w : c.why) out->add_why(String(w));
    out->set_from(c.from + 1);
    out->set_to(c.to + 1);
  }

  void AddNamed(const std::vector<shardc::NamedBuffer>& list,
                google::protobuf::RepeatedPtrField<proto::NamedBuffer>* out) {
    for (const shardc::NamedBuffer& entry : list) {
      proto::NamedBuffer* named = out->Add();
      named->set_name(String(entry.name));
      named->set_buffer(entry.buffer);
      if (entry.piece.whole.empty()) continue;
      proto::NamedBuffer::Piece* piece = named->mutable_piece();
      piece->set_whole(String(entry.piece.whole));
      piece->set_dim(entry.piece.dim);
      piece->set_start(entry.piece.start);
      piece->set_whole_size(entry.piece.whole_size);
    }
  }

  const Program& program_;
  proto::Body body_;
  Table strings_, types_, attributes_;
  Key key_;
};

}  // namespace

std::string SerializeBody(const Program& program) { return BodyEncoder(program).Encode(); }

}  // namespace shardc
