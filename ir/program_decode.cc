#include <algorithm>
#include <bit>
#include <limits>
#include <span>

#include "ir/program_body.h"
#include "ir/shape_limit.h"
#include "program.pb.h"

namespace shardc {
namespace {

class BodyDecoder {
 public:
  BodyDecoder(const proto::Body& body, const std::string& where, Program& program)
      : body_(body), where_(where), program_(program) {}

  void Decode() {
    types_.reserve(body_.types_size());
    for (const proto::LocalType& t : body_.types()) types_.push_back(DecodeType(t));
    for (const proto::Attributes& a : body_.attributes()) attributes_.push_back(DecodeSet(a));
    program_.buffers.reserve(body_.buffers_size());
    for (const proto::Buffer& b : body_.buffers()) program_.buffers.push_back(DecodeBuffer(b));
    program_.instructions.reserve(body_.instructions_size());
    for (const proto::Instruction& i : body_.instructions()) {
      program_.instructions.push_back(DecodeInstruction(i));
    }
    for (const proto::Collective& c : body_.collectives()) {
      program_.collectives.push_back(DecodeCollective(c));
    }
    program_.inputs = DecodeNamed(body_.inputs());
    program_.outputs = DecodeNamed(body_.outputs());
    program_.states = DecodeNamed(body_.states());
    program_.arena_bytes = body_.arena_bytes();
    auto constants = std::as_bytes(std::span(body_.constants()));
    program_.constants.assign(constants.begin(), constants.end());
  }

 private:
  struct LocalType {
    TensorType type;
    Shape local_shape;
  };

  [[noreturn]] void Fail(std::string what) const { ProgramBoundsError(where_, std::move(what)); }

  template <typename List>
  const auto& At(const List& list, uint32_t index, const char* what) const {
    if (index >= static_cast<size_t>(list.size())) {
      Fail(StrCat(what, " ", index, " of a table of ", list.size()));
    }
    return list[static_cast<int>(index)];
  }
  const std::string& String(uint32_t index) const { return At(body_.strings(), index, "string"); }

  template <typename Enum>
  Enum EnumValue(uint32_t value, Enum last, const char* what) const {
    if (value > static_cast<uint32_t>(last)) Fail(StrCat(what, " has no value ", value));
    return static_cast<Enum>(value);
  }
  DType DecodeDType(uint32_t value) const { return EnumValue(value, DType::kBool, "dtype"); }

  int Axis(uint32_t axis) const {
    if (axis >= static_cast<uint32_t>(program_.mesh.num_axes())) {
      Fail(StrCat("axis ", axis, " of a mesh of ", program_.mesh.num_axes(), " axes"));
    }
    return static_cast<int>(axis);
  }
  AxisList Axes(const google::protobuf::RepeatedField<uint32_t>& axes) const {
    if (axes.size() > AxisList::kMax) Fail(StrCat(axes.size(), " axes on one dim"));
    AxisList out;
    for (uint32_t a : axes) out.push_back(Axis(a));
    return out;
  }

  Shape DecodeShape(const google::protobuf::RepeatedField<int64_t>& dims, DType dtype) const {
    Shape shape(dims.begin(), dims.end());
    bool negative = std::any_of(shape.begin(), shape.end(), [](int64_t d) { return d < 0; });
    if (negative || TooLarge(dtype, shape)) {
      Fail(StrCat("shape ", ShapeToString(shape), " has a negative dim, or is too large"));
    }
    return shape;
  }

  DimSharding DecodeDim(const proto::Dim& dim, int64_t size) const {
    DimSharding out;
    out.axes = Axes(dim.axes());
    out.granule = dim.granule();
    if (out.granule < 1 || out.granule > kMaxTensorBytes) Fail(StrCat("granule ", out.granule));
    int64_t left = size;
    for (int64_t n : dim.segments()) {
      if (n < 0 || n > left) Fail(StrCat("segments that exceed their dim of ", size));
      left -= n;
      out.segments.push_back(n);
    }
    return out;
  }

  LocalType DecodeType(const proto::LocalType& t) const {
    LocalType out;
    TensorType& type = out.type;
    type.dtype = DecodeDType(t.dtype());
    type.shape = DecodeShape(t.shape(), type.dtype);
    if (t.dims_size() != t.shape_size()) {
      Fail(StrCat("a sharding of ", t.dims_size(), " dims for a tensor of ", t.shape_size()));
    }
    for (int i = 0; i < t.dims_size(); ++i) {
      type.sharding.dims.push_back(DecodeDim(t.dims(i), type.shape[i]));
    }
    type.sharding.partial_sum = Axes(t.partial_sum());
    type.sharding.partial_max = Axes(t.partial_max());
    try {
      CheckSharding(type, program_.mesh, where_);
    } catch (const Diagnostic& d) {
      Fail(d.message());
    }
    out.local_shape = DecodeShape(t.local_shape(), type.dtype);
    if (Shape expected = LocalShape(type, program_.mesh); out.local_shape != expected) {
      Fail(StrCat("local shape ", ShapeToString(out.local_shape), " for ",
                  TypeToString(type, program_.mesh), ", whose shards are ",
                  ShapeToString(expected)));
    }
    return out;
  }

  TensorPtr DecodeTensor(const proto::Tensor& t) const {
    DType dtype = DecodeDType(t.dtype());
    Shape shape = DecodeShape(t.shape(), dtype);
    // Before the allocation: a wrong shape must not ask for all memory.
    if (NumElements(shape) * DTypeSize(dtype) != static_cast<int64_t>(t.data().size())) {
      Fail(StrCat("a tensor attribute of shape ", ShapeToString(shape), " has ", t.data().size(),
                  " bytes"));
    }
    HostTensor out(dtype, std::move(shape));
    std::ranges::copy(std::as_bytes(std::span(t.data())), out.raw());
    return std::make_shared<const HostTensor>(std::move(out));
  }

  Attribute DecodeAttribute(const proto::Attribute& a) const {
    switch (a.value_case()) {
      case proto::Attribute::kInt:
        return a.int_();
      case proto::Attribute::kFloatBits:
        return std::bit_cast<double>(uint64_t{a.float_bits()});
      case proto::Attribute::kFlag:
        return a.flag();
      case proto::Attribute::kText:
        return a.text();
      case proto::Attribute::kInts:
        return Ints(a.ints().value().begin(), a.ints().value().end());
      case proto::Attribute::kTexts:
        return Strings(a.texts().value().begin(), a.texts().value().end());
      case proto::Attribute::kTensor:
        return DecodeTensor(a.tensor());
      case proto::Attribute::VALUE_NOT_SET:
        break;
    }
    Fail(StrCat("attribute '", String(a.name()), "' has no value"));
  }

  Attributes DecodeSet(const proto::Attributes& set) const {
    Attributes out;
    for (const proto::Attribute& a : set.entry()) {
      const std::string& name = String(a.name());
      if (out.Has(name)) Fail(StrCat("attribute '", name, "' appears twice"));
      out.Set(name, DecodeAttribute(a));
    }
    return out;
  }

  // An optional index, stored plus one.
  int Optional(int32_t plus_one, const char* what) const {
    if (plus_one < 0) Fail(StrCat(what, " ", plus_one, " is negative"));
    return plus_one - 1;
  }

  Buffer DecodeBuffer(const proto::Buffer& b) const {
    const LocalType& t = At(types_, b.type(), "type");
    Buffer out;
    out.type = t.type;
    out.local_shape = t.local_shape;
    out.space = EnumValue(b.space(), Space::kConstant, "space");
    out.offset = b.offset();
    out.bytes = b.bytes();
    out.name = String(b.name());
    out.alias_of = Optional(b.alias_of(), "alias");
    return out;
  }

  Instruction DecodeInstruction(const proto::Instruction& i) const {
    Instruction out;
    out.op = String(i.op());
    out.attrs = At(attributes_, i.attributes(), "attribute set");
    out.operands.assign(i.operands().begin(), i.operands().end());
    out.results.assign(i.results().begin(), i.results().end());
    out.collective = Optional(i.collective(), "collective");
    out.scratch = Optional(i.scratch(), "scratch");
    out.phase = EnumValue(i.phase(), Phase::kOptimizer, "phase");
    out.site = String(i.site());
    out.flops = i.flops();
    out.bytes = i.bytes();
    return out;
  }

  Collective DecodeCollective(const proto::Collective& c) const {
    Collective out;
    out.id = c.id();
    out.kind = EnumValue(c.kind(), CollectiveKind::kSendRecv, "collective kind");
    out.max = c.max();
    for (uint32_t a : c.axes()) out.axes.push_back(Axis(a));
    out.dtype = DecodeDType(c.dtype());
    out.elements = c.elements();
    out.op = String(c.op());
    for (uint32_t w : c.why()) out.why.push_back(String(w));
    out.from = Optional(c.from(), "sender");
    out.to = Optional(c.to(), "receiver");
    return out;
  }

  std::vector<NamedBuffer> DecodeNamed(
      const google::protobuf::RepeatedPtrField<proto::NamedBuffer>& list) const {
    std::vector<NamedBuffer> out;
    for (const proto::NamedBuffer& n : list) {
      out.push_back({String(n.name()), n.buffer()});
      if (!n.has_piece()) continue;
      const proto::NamedBuffer::Piece& p = n.piece();
      out.back().piece = {String(p.whole()), p.dim(), p.start(), p.whole_size()};
    }
    return out;
  }

  const proto::Body& body_;
  const std::string& where_;
  Program& program_;
  std::vector<LocalType> types_;
  std::vector<Attributes> attributes_;
};

}  // namespace

void DecodeBody(std::string_view bytes, const std::string& where, Program& program) {
  proto::Body body;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !body.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw Diagnostic("E3001", ExitCode::kVerification, where,
                     "its checksum is right, but its body is not one of a program",
                     "compile the plan again");
  }
  BodyDecoder(body, where, program).Decode();
}

}  // namespace shardc
