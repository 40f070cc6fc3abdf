#include "runtime/cuda/product_groups.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ir/diagnostic.h"
#include "runtime/cuda/schedule.h"

namespace shardc::cuda {
namespace {

constexpr int64_t kAuxRows = 8;  // what an auxiliary matrix' leading dim is a multiple of

bool IsProduct(const Instruction& i) {
  return i.op == "matmul" || i.op == "matmul_nt" || i.op == "matmul_tn" || i.op == "linear";
}

class Finder {
 public:
  Finder(const Program& program, std::vector<std::string>* refusals)
      : program_(program),
        refusals_(refusals),
        writer_(program.buffers.size(), -1),
        readers_(program.buffers.size(), 0),
        taken_(program.instructions.size(), false) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      for (int b : At(i).operands) ++readers_[Root(b)];
      for (int b : At(i).results) writer_[Root(b)] = static_cast<int>(i);
    }
    for (const NamedBuffer& o : program.outputs) ++readers_[Root(o.buffer)];
  }

  std::vector<ProductGroup> Run() {
    const auto n = static_cast<int>(program_.instructions.size());
    for (int i = 0; i < n; ++i) {
      if (At(i).op == "gelu") TryGelu(i);
      if (At(i).op == "gelu_grad") TryGeluGrad(i);
    }
    for (int i = 0; i < n; ++i) {
      if (At(i).op == "reduce_sum" && !taken_[i]) TrySums(i);
    }
    std::sort(groups_.begin(), groups_.end(),
              [](const ProductGroup& a, const ProductGroup& b) { return a.place < b.place; });
    return std::move(groups_);
  }

 private:
  template <typename Index>
  const Instruction& At(Index i) const {
    return program_.instructions[i];
  }
  const Buffer& BufferAt(int b) const { return program_.buffers[b]; }
  DType TypeOf(int b) const { return BufferAt(b).type.dtype; }
  size_t Root(int b) const { return static_cast<size_t>(RootOf(program_, b)); }
  bool SameBytes(int a, int b) const {
    return Root(a) == Root(b) && BufferAt(a).offset == BufferAt(b).offset &&
           BufferAt(a).bytes == BufferAt(b).bytes && TypeOf(a) == TypeOf(b);
  }
  // Of cuBLASLt's matrix of the product's result.
  int64_t Rows(int product) const { return BufferAt(At(product).results[0]).local_shape.back(); }
  // The product of which the buffer holds all; or -1.
  int ProductOf(int buffer) const {
    const int i = writer_[Root(buffer)];
    return i >= 0 && IsProduct(At(i)) && SameBytes(At(i).results[0], buffer) ? i : -1;
  }

  void TryGelu(int gelu) {
    const int operand = At(gelu).operands[0], product = ProductOf(operand);
    if (product < 0) return;
    ProductGroup g = GroupOf(product, {gelu});
    g.result = At(gelu).results[0];
    if (readers_[Root(operand)] == 1) {
      g.epilogue = Epilogue::kGelu;
    } else {
      g.epilogue = Epilogue::kGeluAux;
      g.aux = At(product).results[0];
    }
    Settle(g, gelu, IsTanh(gelu));
  }

  void TryGeluGrad(int grad) {
    const int dy = At(grad).operands[0], product = ProductOf(dy);
    if (product < 0) return;
    ProductGroup g = GroupOf(product, {grad});
    g.epilogue = Epilogue::kGeluGrad;
    g.aux = At(grad).operands[1];
    g.result = At(grad).results[0];
    std::string why = IsTanh(grad);
    if (why.empty() && readers_[Root(dy)] != 1) why = "the product is read elsewhere";
    if (const int sums = SumsOf(g.result, Rows(product)); why.empty() && sums >= 0) {
      ProductGroup with = g;
      with.epilogue = Epilogue::kGeluGradSums;
      with.instructions.push_back(sums);
      std::sort(with.instructions.begin(), with.instructions.end());
      with.sums = At(sums).results[0];
      if (WhyNot(&with).empty()) g = with;
    }
    Settle(g, grad, why);
  }

  void TrySums(int sums) {
    const int operand = At(sums).operands[0];
    for (size_t p = 0; p < program_.instructions.size(); ++p) {
      if (At(p).op != "matmul_tn" || taken_[p]) continue;
      const bool right = SameBytes(At(p).operands[1], operand);
      if (!right && !SameBytes(At(p).operands[0], operand)) continue;
      ProductGroup g = GroupOf(static_cast<int>(p), {sums});
      g.epilogue = right ? Epilogue::kSumsOfRight : Epilogue::kSumsOfLeft;
      g.result = At(p).results[0];
      g.sums = At(sums).results[0];
      std::string why;
      const int summed = right ? g.right : g.left;
      if (!SumsRows(sums, BufferAt(summed).local_shape.back())) {
        why = "it does not sum over all dims but the last";
      }
      Settle(g, sums, why);
      if (taken_[p]) return;
    }
  }

  // The first reduce_sum of the buffer, as rows of `cols`, to its own type; or -1.
  int SumsOf(int buffer, int64_t cols) const {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      if (At(i).op == "reduce_sum" && SameBytes(At(i).operands[0], buffer) &&
          TypeOf(At(i).results[0]) == TypeOf(buffer) && SumsRows(static_cast<int>(i), cols)) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  bool SumsRows(int sums, int64_t cols) const {
    const Shape& shape = BufferAt(At(sums).operands[0]).local_shape;
    const auto rank = static_cast<int64_t>(shape.size());
    if (rank < 2 || shape.back() != cols) return false;
    std::vector<bool> summed(shape.size());
    for (int64_t axis : At(sums).attrs.IntList("axes")) {
      summed[axis < 0 ? axis + rank : axis] = true;
    }
    return !summed.back() &&
           std::all_of(summed.begin(), summed.end() - 1, [](bool b) { return b; });
  }

  std::string IsTanh(int i) const {
    return At(i).attrs.String("approximate") == "tanh" ? "" : "cuBLASLt has gelu by tanh only";
  }

  ProductGroup GroupOf(int product, std::vector<int> others) const {
    ProductGroup g;
    g.product = product;
    g.instructions = std::move(others);
    g.instructions.push_back(product);
    std::sort(g.instructions.begin(), g.instructions.end());
    g.left = At(product).operands[0];
    g.right = At(product).operands[1];
    if (At(product).op == "linear") g.bias = At(product).operands[2];
    return g;
  }

  // Takes the group unless there is a reason against it.
  void Settle(ProductGroup g, int instruction, std::string why) {
    if (why.empty()) why = WhyNot(&g);
    if (why.empty()) {
      for (int i : g.instructions) taken_[i] = true;
      groups_.push_back(std::move(g));
    } else if (refusals_) {
      refusals_->push_back(
          StrCat("instruction ", instruction, ", ", At(instruction).op, ": ", why));
    }
  }

  // Gives the group its place, if there is no reason against it.
  std::string WhyNot(ProductGroup* g) const {
    for (int i : g->instructions) {
      if (taken_[i]) return "another group has it";
      if (At(i).scratch >= 0) return "it has memory of its own";
      for (const std::vector<int>* list : {&At(i).operands, &At(i).results}) {
        for (int b : *list) {
          if (BufferAt(b).bytes == 0) return "there is nothing to do";
          if (HasPadding(BufferAt(b).type, program_.mesh)) return "a tensor has padding";
        }
      }
    }
    for (const auto& check :
         {&Finder::WhyNotProduct, &Finder::WhyNotTypes, &Finder::WhyNotMemory}) {
      if (std::string why = (this->*check)(*g); !why.empty()) return why;
    }
    return Place(g);
  }

  std::string WhyNotProduct(const ProductGroup& g) const {
    const Instruction& p = At(g.product);
    const bool gelu = g.epilogue == Epilogue::kGelu || g.epilogue == Epilogue::kGeluAux;
    if (p.op == "linear" && !gelu) return "the product has a bias";
    if (p.op != "linear" && p.operands.size() > 2) return "the product is added to something";
    if (p.attrs.Has("cols") || p.attrs.Has("length")) return "it is of a part of the rows";
    const bool one = p.op == "matmul_tn" ? p.attrs.Int("batch", 0) == 0
                                         : BufferAt(g.right).local_shape.size() == 2;
    return one ? "" : "the product is of several matrices";
  }

  std::string WhyNotTypes(const ProductGroup& g) const {
    const DType in = TypeOf(g.left), out = TypeOf(At(g.product).results[0]);
    if (!IsFloat(in) || in == DType::kF64) return "cuBLASLt has no epilogues for the type";
    for (int b : {g.bias, g.aux, g.result, g.sums}) {
      if (b >= 0 && TypeOf(b) != out) return "its types differ from the product's";
    }
    if (g.aux >= 0 && Rows(g.product) % kAuxRows != 0) {
      return StrCat("the last dim of gelu's operand is no multiple of ", kAuxRows);
    }
    return "";
  }

  // Settles where the group runs: as late as it can, so that bias gradients and weight gradients do
  // not delay what other ranks wait for.
  std::string Place(ProductGroup* g) const {
    std::string why;
    for (auto at = g->instructions.rbegin(); at != g->instructions.rend(); ++at) {
      g->place = *at;
      std::string here = WhyNotMoved(*g);
      if (here.empty()) return "";
      if (why.empty()) why = std::move(here);
    }
    return why;
  }

  std::string WhyNotMoved(const ProductGroup& g) const {
    for (int moved : g.instructions) {
      const std::vector<Access> mine = AccessesOf(program_, At(moved));
      const auto [from, to] = std::minmax(moved, g.place);
      for (int i = from + 1; i < to; ++i) {
        if (std::find(g.instructions.begin(), g.instructions.end(), i) != g.instructions.end()) {
          continue;
        }
        if (Conflict(mine, AccessesOf(program_, At(i)))) {
          return StrCat("instruction ", i, " stands between");
        }
      }
      for (const ProductGroup& other : groups_) {
        for (int i : other.instructions) {
          const bool turned = (moved < i) != (g.place < other.place);
          if (turned && Conflict(mine, AccessesOf(program_, At(i)))) {
            return StrCat("instruction ", i, " runs elsewhere");
          }
        }
      }
    }
    return "";
  }

  std::string WhyNotMemory(const ProductGroup& g) const {
    std::vector<Access> reads, writes;
    auto add = [&](int buffer, bool write) {
      if (buffer < 0) return;
      if (auto a = AccessOf(program_, buffer, write)) (write ? writes : reads).push_back(*a);
    };
    add(g.left, false);
    add(g.right, false);
    add(g.bias, false);
    add(g.aux, g.epilogue == Epilogue::kGeluAux);
    add(g.result, true);
    add(g.sums, true);
    for (size_t i = 0; i < writes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (Conflict(writes[i], writes[j])) return "two results share memory";
      }
      for (const Access& r : reads) {
        if (Conflict(writes[i], r)) return "a result is made in the memory of an operand";
      }
    }
    return "";
  }

  const Program& program_;
  std::vector<std::string>* refusals_;
  std::vector<int> writer_, readers_;  // by root; outputs are readers too
  std::vector<bool> taken_;            // by instruction
  std::vector<ProductGroup> groups_;
};

}  // namespace

std::string_view EpilogueName(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kGelu:
      return "gelu";
    case Epilogue::kGeluAux:
      return "gelu_aux";
    case Epilogue::kGeluGrad:
      return "gelu_grad";
    case Epilogue::kGeluGradSums:
      return "gelu_grad_sums";
    case Epilogue::kSumsOfRight:
      return "sums_of_right";
    case Epilogue::kSumsOfLeft:
      return "sums_of_left";
    case Epilogue::kNone:
      break;
  }
  return "none";
}

std::vector<ProductGroup> FindProductGroups(const Program& program,
                                            std::vector<std::string>* refusals) {
  return Finder(program, refusals).Run();
}

}  // namespace shardc::cuda
