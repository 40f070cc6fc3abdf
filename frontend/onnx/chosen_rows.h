// Rows that data chooses: x[mask], and the loop of a mixture of experts over the tokens of each.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "ir/host_tensor.h"

namespace shardc::onnx_import {

// NonZero names the places of a mask that hold something, as many as data says. Here it names all
// places, and of the rows that are looked up there nothing comes of those that data did not choose:
// each op makes a row of the same row of its operands, and what puts rows back leaves these out.
//
// Keeps which dim of a value counts such rows (as the ops' sharding rules say) and which integers
// depend on how many there are, which only shapes may: by what they would be if there were others.
class ChosenRows {
 public:
  struct Mark {
    int dim = 0;
    Value* chosen = nullptr;  // bool [rows]
    int64_t each = 1;         // so many elements of the dim, one behind the other, are a row's
    // Of the places of a mask that is spread over the elements of rows the dim of their
    // coordinates: the value stands for them, and holds none.
    int coordinates = -1;
    bool operator==(const Mark&) const = default;
  };

  // What a mask was made into, for its places one behind the other; null at first.
  Value*& chosen_by(const Value* mask) { return chosen_[mask]; }

  const Mark* Of(const Value* v) const;  // null: it counts none
  static int64_t RowsOf(const Mark& mark);
  void Set(const Value* v, Mark mark) { marks_[v] = mark; }
  // The file is only for data that chooses all of these: they are rows like any others, but for
  // what holds no places.
  void SetAll(const Value* chosen) { all_.insert(chosen); }

  // Marks the results of an op. Throws Diagnostic E1301 where it does not make each row from the
  // same row of its operands, or computes with how many there are.
  void Follow(const Op& op);
  // The same, of an op that is folded: its operands and results are constants.
  void FollowFolded(const Op& op);

  // While one lives nothing is followed: what puts rows back reads them as it must.
  class Pause {
   public:
    explicit Pause(ChosenRows& rows) : rows_(rows) { ++rows_.paused_; }
    ~Pause() { --rows_.paused_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    ChosenRows& rows_;
  };

  // A constant that was made of the shape of what counts rows: what it would be with so many.
  void SetCount(const Value* count, const Mark& mark,
                const std::function<HostTensor(int64_t rows)>& with);
  // Where `shape` depends on how many rows there are, the dim of `v`, of that shape, counts them.
  // False where that cannot be said, or is not so.
  bool TakeShape(const Value* v, const Value* shape);
  // Whether all the rows that v counts are in front of their end among `ends`, one for each of
  // these dims, and no other end depends on them.
  bool EndsBehind(const Value* v, const std::vector<int>& dims, const Value* ends) const;
  bool IsCount(const Value* v) const { return CountOf(v) != nullptr; }

  // What was looked up in `data` at these positions; data, where this is so, of those positions.
  void SetTaken(const Value* rows, Value* data, std::vector<int64_t> positions);
  const Value* TakenFrom(const Value* rows, const std::vector<int64_t>& positions) const;

 private:
  struct Count {
    std::vector<HostTensor> with;  // by NumbersOf rows
    Value* chosen;
  };
  const Count* CountOf(const Value* v) const;  // null: it depends on none
  // So many rows as there may be instead of all; of many some of these.
  static std::vector<int64_t> NumbersOf(const Value* chosen);
  struct Taken {
    Value* data;
    std::vector<int64_t> positions;
  };
  int paused_ = 0;
  std::unordered_set<const Value*> all_;
  std::unordered_map<const Value*, Value*> chosen_;
  std::unordered_map<const Value*, Mark> marks_;
  std::unordered_map<const Value*, Count> counts_;
  std::unordered_map<const Value*, Taken> taken_;
};

}  // namespace shardc::onnx_import
