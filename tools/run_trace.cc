// The trace of a run, written as it goes: profiles of long runs have a million events.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "ir/diagnostic.h"
#include "ir/output_file.h"
#include "tools/run_profile.h"

namespace shardc {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Microseconds, the unit of the format, exact to the nanosecond: rounding could let spans overlap.
std::string Microseconds(int64_t ns) {
  std::string digits = std::to_string(ns % 1000);
  return std::to_string(ns / 1000) + "." + std::string(3 - digits.size(), '0') + digits;
}

class TraceWriter {
 public:
  TraceWriter(const Profile& profile, const std::string& path) : p_(profile), file_(path) {}

  void Write() {
    if (p_.steps() > 0) {
      origin_ = std::numeric_limits<int64_t>::max();
      for (size_t r = 0; r < p_.ranks.size(); ++r) {
        origin_ = std::min(origin_, p_.at(r, 0, 0).begin_ns);
      }
    }
    text_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":" +
            Dump({{"gemm_gflops", p_.peaks.gemm_flops / 1e9},
                  {"copy_gbytes_per_s", p_.peaks.copy_bytes / 1e9}}) +
            ",\"traceEvents\":[";
    for (size_t r = 0; r < p_.ranks.size(); ++r) WriteRank(r);
    text_ += "\n]}\n";
    file_.Write(text_);
    file_.Commit();
  }

 private:
  void WriteRank(size_t rank) {
    Metadata(rank, "process_name", {{"name", StrCat("rank ", rank)}});
    Metadata(rank, "process_sort_index", {{"sort_index", rank}});
    Metadata(rank, "thread_name", {{"name", "instructions"}});
    int threads = 0;
    if (rank < p_.workers.size()) {
      for (const WorkerSpan& w : p_.workers[rank]) threads = std::max(threads, w.thread);
    }
    for (int t = 1; t <= threads; ++t) {
      Metadata(rank, "thread_name", {{"name", StrCat("thread ", t)}}, t);
    }
    const Program& program = p_.programs[rank];
    std::vector<std::string> heads;
    for (const Instruction& i : program.instructions) heads.push_back(Head(program, i));
    for (size_t s = 0; s < p_.steps(); ++s) {
      TimeSpan step{p_.at(rank, s, 0).begin_ns, p_.at(rank, s, heads.size() - 1).end_ns};
      Complete(rank, StrCat("\"name\":\"step ", s, "\",\"cat\":\"step\""), step, "");
      for (size_t i = 0; i < heads.size(); ++i) {
        TimeSpan span = p_.at(rank, s, i);
        int64_t wait = p_.WaitNs(rank, s, i);
        bool collective = program.instructions[i].collective >= 0;
        Complete(rank, heads[i], span,
                 collective ? ",\"wait_us\":" + Microseconds(wait) + "}" : "}");
        if (wait > p_.LateNs(rank, s, i)) {
          WaitForPeers(rank, {span.begin_ns, span.begin_ns + wait - p_.LateNs(rank, s, i)});
        }
      }
      if (text_.size() > (1 << 20)) Flush();
    }
    if (rank >= p_.workers.size()) return;
    for (const WorkerSpan& w : p_.workers[rank]) {
      if (w.thread == 0) {
        WaitForPeers(rank, w.span);
      } else {
        Complete(rank, heads[w.instruction], w.span, "}", w.thread);
      }
      if (text_.size() > (1 << 20)) Flush();
    }
  }

  void Flush() {
    file_.Write(text_);
    text_.clear();
  }

  void Begin() {
    text_ += first_ ? "\n{" : ",\n{";
    first_ = false;
  }

  void Metadata(size_t rank, const char* name, const Json& args, int thread = 0) {
    Begin();
    text_ += StrCat("\"ph\":\"M\",\"pid\":", rank, ",\"tid\":", thread, ",\"name\":\"", name,
                    "\",\"args\":", Dump(args), "}");
  }

  // `tail` closes what `head` leaves open.
  void Complete(size_t rank, const std::string& head, TimeSpan span, const std::string& tail,
                int thread = 0) {
    Begin();
    text_ += StrCat("\"ph\":\"X\",\"pid\":", rank, ",\"tid\":", thread,
                    ",\"ts\":", Microseconds(span.begin_ns - origin_),
                    ",\"dur\":", Microseconds(span.ns()), ",", head, tail, "}");
  }

  void WaitForPeers(size_t rank, TimeSpan span) {
    Complete(rank, "\"name\":\"wait for peers\",\"cat\":\"wait\"", span, "");
  }

  // Name, category and arguments of an instruction, the same in every step; the arguments are left
  // open.
  static std::string Head(const Program& program, const Instruction& i) {
    Json args = {{"op", i.op}, {"site", i.site}, {"phase", PhaseName(i.phase)}};
    args["in"] = Shapes(program, i.operands);
    args["out"] = Shapes(program, i.results);
    args["flops"] = i.flops;
    args["bytes"] = i.bytes;
    if (i.collective >= 0) {
      const Collective& c = program.collectives[i.collective];
      args["collective"] = c.id;
      args["for"] = c.op;
      args["axes"] = program.mesh.Names(c.axes);
      args["why"] = c.why;
    }
    std::string open = Dump(args);
    open.pop_back();
    return StrCat("\"name\":", Dump(i.op), ",\"cat\":\"", PhaseName(i.phase), "\",\"args\":", open);
  }

  // Local ones: "f32[2, 16, 48]".
  static Json Shapes(const Program& program, const std::vector<int>& buffers) {
    Json shapes = Json::array();
    for (int b : buffers) {
      const Buffer& buffer = program.buffers[b];
      shapes.push_back(StrCat(DTypeName(buffer.type.dtype), ShapeToString(buffer.local_shape)));
    }
    return shapes;
  }

  const Profile& p_;
  WholeFile file_;
  int64_t origin_ = 0;
  std::string text_;
  bool first_ = true;
};

}  // namespace

void WriteTrace(const Profile& profile, const std::string& path) {
  TraceWriter(profile, path).Write();
}

}  // namespace shardc
