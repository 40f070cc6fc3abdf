// Tables of sines and cosines, which most modules keep as parameters that they do not train.
#include <algorithm>
#include <cmath>

#include "frontend/recover/patterns.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"

namespace shardc::recover {
namespace {

// Of each frequency a row has the sine and the cosine, whose squares add to 1; what stands for no
// position is zero.
class SinesTest {
 public:
  bool Takes(const HostTensor& rows) {
    const int64_t width = rows.shape().back();
    const double half = static_cast<double>(width) / 2;
    const double tolerance = DTypeSize(rows.dtype()) < 4 ? 1e-2 : 1e-4;
    for (int64_t i = 0; i < rows.num_elements(); i += width) {
      double squares = 0;
      for (int64_t k = i; k < i + width; ++k) {
        const double x = rows.AsDouble(k);
        if (!(std::abs(x) <= 1 + tolerance)) return false;
        squares += x * x;
      }
      if (squares == 0) {
        if (++zeros_ > 1) return false;
      } else if (std::abs(squares - half) > tolerance * half) {
        return false;
      } else {
        ++positions_;
      }
    }
    return true;
  }
  bool Result() const { return positions_ > 2; }

 private:
  int64_t zeros_ = 0, positions_ = 0;
};

bool HoldsSines(const TensorSource& source, const TensorType& type) {
  const int64_t rank = type.rank();
  if (rank < 2 || type.shape.back() < 4 || type.shape.back() % 2 != 0) return false;
  const int64_t rows = type.shape[rank - 2];
  if (rows * type.shape.back() != type.num_elements()) return false;
  SinesTest test;
  // The first rows of another matrix tell.
  for (int64_t from = 0, n = 16; from < rows; from += n) {
    if (from > 0) n = 1024;
    Shape offset(rank, 0), size = type.shape;
    offset[rank - 2] = from;
    size[rank - 2] = std::min(n, rows - from);
    HostTensor piece(type.dtype, size);
    source.Read(offset, size, piece.raw());
    if (!test.Takes(piece)) return false;
  }
  return test.Result();
}

}  // namespace

void NoteSines(Graph& graph) {
  Strings tables;
  for (const Op* param : graph.Params()) {
    const std::string& name = param->attrs.String("name");
    const auto source = graph.sources.find(name);
    if (source == graph.sources.end() || !IsFloat(param->out().dtype)) continue;
    if (HoldsSines(*source->second, param->out())) tables.push_back(name);
  }
  if (tables.empty()) return;
  const int64_t more = std::ssize(tables) - 1;
  graph.notes.push_back(StrCat("'", tables[0], "' ",
                               more > 0 ? StrCat("and ", Counted(more, "other"), " hold") : "holds",
                               " sines and cosines of positions, which few modules train; an "
                               "optimizer does, unless --freeze names ",
                               more > 0 ? "them" : "it"));
}

}  // namespace shardc::recover
