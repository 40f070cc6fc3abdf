#include "specs/spec.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ir/diagnostic.h"
#include "shard_spec.pb.h"
#include "specs/shipped.h"

namespace shardc {
namespace {

namespace pb = google::protobuf;
using specs::ShardSpecFile;

// Field and enum names anywhere in the schema, for "did you mean".
void CollectNames(const pb::Descriptor* d, std::vector<std::string>& names) {
  for (int i = 0; i < d->field_count(); ++i) {
    const pb::FieldDescriptor* f = d->field(i);
    names.push_back(f->name());
    if (f->message_type()) CollectNames(f->message_type(), names);
    if (f->enum_type()) {
      for (int e = 0; e < f->enum_type()->value_count(); ++e) {
        names.push_back(f->enum_type()->value(e)->name());
      }
    }
  }
}

class Errors : public pb::io::ErrorCollector {
 public:
  Errors(const std::string& text, std::string file) : text_(text), file_(std::move(file)) {}
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (!first_.empty()) return;
    first_ = message;
    line_ = line;
    column_ = column;
  }
  [[noreturn]] void Throw() const {
    // The offending word is the last one quoted.
    std::string word, fix;
    size_t end = first_.rfind('"'),
           begin = end == std::string::npos ? end : first_.rfind('"', end - 1);
    if (begin != std::string::npos && begin < end) word = first_.substr(begin + 1, end - begin - 1);
    // Of 'has no field named "x"' and 'Unknown enumeration value of "X" for field "role"', the
    // name.
    if (size_t of = first_.find(" of \""); of != std::string::npos) {
      size_t start = of + 5;
      word = first_.substr(start, first_.find('"', start) - start);
    }
    std::vector<std::string> names;
    CollectNames(ShardSpecFile::descriptor(), names);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (!word.empty()) fix = DidYouMean(word, names);
    const bool ends = first_.ends_with("got: ");
    if (ends) fix = "close what was opened: the file ends here";
    if (fix.empty()) {
      fix =
          "specs/README.md says how a spec file is written, and specs/shard_spec.proto has its "
          "fields";
    }
    SpecLocation where{file_, line_ + 1, ColumnOf(word) + 1};
    throw Diagnostic("E2100", ExitCode::kBadSpec, where.ToString(),
                     ends ? first_ + "the end of the file" : first_, fix);
  }

 private:
  // The parser has read the word already when it refuses it: back to where the word begins.
  int ColumnOf(const std::string& word) const {
    size_t begin = 0;
    for (int i = 0; i < line_; ++i) begin = text_.find('\n', begin) + 1;
    size_t at = text_.rfind(word, begin + static_cast<size_t>(column_));
    bool found = !word.empty() && at != std::string::npos && at >= begin;
    // Tabs count up to the next multiple of 8.
    bool plain = text_.find('\t', begin) >= begin + static_cast<size_t>(column_);
    return found && plain ? static_cast<int>(at - begin) : column_;
  }

  const std::string& text_;
  std::string file_, first_;
  int line_ = -1, column_ = 0;
};

// From the parsed file, with the places of what it says.
class Reader {
 public:
  Reader(const ShardSpecFile& proto, const pb::TextFormat::ParseInfoTree& info, std::string file)
      : proto_(proto), info_(info) {
    spec_.name = std::move(file);
  }

  Spec Run() {
    ReadMesh();
    for (int i = 0; i < proto_.param_size(); ++i) ReadParam(i);
    for (int i = 0; i < proto_.input_size(); ++i) ReadInput(i);
    for (int i = 0; i < proto_.value_size(); ++i) ReadValue(i);
    ReadZero();
    ReadMicrobatches();
    ReadPipeline();
    return std::move(spec_);
  }

 private:
  // `i`: of a repeated field; -1 of others.
  SpecLocation Where(const char* field, int i = -1) const {
    return At(info_.GetLocation(ShardSpecFile::descriptor()->FindFieldByName(field), i));
  }
  SpecLocation At(pb::TextFormat::ParseLocation at) const {
    return {spec_.name, at.line + 1, at.column + 1};
  }

  static Diagnostic Bad(const SpecLocation& where, std::string what, std::string fix = {}) {
    return Diagnostic("E2101", ExitCode::kBadSpec, where.ToString(), std::move(what),
                      std::move(fix));
  }

  void ReadMesh() {
    for (int i = 0; i < proto_.mesh().axis_size(); ++i) {
      const auto& axis = proto_.mesh().axis(i);
      if (!axis.has_name()) throw Bad(WhereAxis(i), "an axis needs a name");
      spec_.mesh.push_back({axis.name(), axis.size()});
    }
    SpecLocation where = Where("mesh");
    if (proto_.has_process_group()) {
      where = Where("process_group");
      if (proto_.has_mesh()) throw Bad(where, "give mesh or process_group, not both");
      spec_.mesh.push_back({"tp", proto_.process_group().tp_degree()});
    }
    try {
      Mesh check(spec_.mesh);
    } catch (const Diagnostic& error) {
      throw error.In(where.ToString());
    }
  }

  SpecLocation WhereAxis(int i) const {
    const pb::FieldDescriptor* mesh = ShardSpecFile::descriptor()->FindFieldByName("mesh");
    return At(info_.GetTreeForNested(mesh, -1)->GetLocation(
        mesh->message_type()->FindFieldByName("axis"), i));
  }

  void ReadParam(int i) {
    const auto& p = proto_.param(i);
    SpecRule rule;
    rule.where = Where("param", i);
    rule.match = p.match();
    if (p.has_role()) rule.role = specs::Role_Name(p.role());
    if (p.has_part()) rule.part = p.part() == specs::WEIGHT ? "weight" : "bias";
    if (rule.match.empty() && rule.role.empty()) {
      throw Bad(rule.where, "a param rule needs match or role");
    }
    if (p.has_compute_spec()) rule.output_replicate = p.compute_spec().output_replicate();
    if (p.has_weight_decay()) rule.weight_decay = p.weight_decay();
    rule.may_match_nothing = p.may_match_nothing();
    spec_.params.push_back(WithCuts(std::move(rule), p.shard_spec()));
  }

  void ReadInput(int i) {
    const auto& p = proto_.input(i);
    SpecRule rule;
    rule.where = Where("input", i);
    rule.match = p.match();
    if (rule.match.empty()) throw Bad(rule.where, "an input rule needs match");
    rule.may_match_nothing = p.may_match_nothing();
    spec_.inputs.push_back(WithCuts(std::move(rule), p.shard_spec()));
  }

  void ReadValue(int i) {
    const auto& p = proto_.value(i);
    SpecRule rule;
    rule.where = Where("value", i);
    rule.match = p.match();
    if (p.has_role()) rule.role = specs::Role_Name(p.role());
    if (rule.match.empty() == rule.role.empty() || p.shard_spec().dims_size() == 0) {
      throw Bad(rule.where, "a value rule needs match or role, not both, and a shard_spec");
    }
    rule.may_match_nothing = p.may_match_nothing();
    spec_.values.push_back(WithCuts(std::move(rule), p.shard_spec()));
  }

  static SpecRule WithCuts(SpecRule rule, const specs::ShardSpec& shard) {
    auto bad = [&](std::string what) { return Bad(rule.where, std::move(what)); };
    if (shard.dims_size() != shard.axes_size()) {
      throw bad(StrCat("shard_spec has ", shard.dims_size(), " dims and ", shard.axes_size(),
                       " axes; give one axis for each dim"));
    }
    for (int i = 0; i < shard.dims_size(); ++i) {
      for (int j = 0; j < i; ++j) {
        if (shard.axes(i) == shard.axes(j)) {
          throw bad(
              StrCat("axis '", shard.axes(i), "' is given twice; an axis cuts one dim, once"));
        }
      }
      rule.cuts.push_back({shard.dims(i), shard.axes(i)});
    }
    if (shard.segments_size() > 0 && rule.cuts.size() != 1) {
      throw bad("segments need exactly one cut dim");
    }
    for (int64_t n : shard.segments()) {
      if (n < 1) throw bad(StrCat("segment size ", n, " is not positive"));
      rule.cuts[0].segments.push_back(n);
    }
    if (!shard.has_balanced_segments()) return rule;
    const int segments = shard.balanced_segments();
    const bool one_dim =
        !rule.cuts.empty() && std::ranges::all_of(rule.cuts, [&](const CutDim& cut) {
          return cut.dim == rule.cuts[0].dim;
        });
    if (!one_dim || shard.segments_size() > 0) {
      throw bad("balanced_segments need exactly one cut dim, and no segments");
    }
    if (segments < 1) throw bad(StrCat("balanced_segments ", segments, " is not positive"));
    for (CutDim& cut : rule.cuts) cut.balanced_segments = segments;
    return rule;
  }

  void ReadZero() {
    const SpecLocation where = Where("zero_stage");
    if (proto_.zero_stage() < 0 || proto_.zero_stage() > 3) {
      throw Bad(where, StrCat("there is no zero_stage ", proto_.zero_stage()),
                "use 1, 2 or 3, or 0");
    }
    ZeroSpec& zero = spec_.zero;
    if (proto_.has_zero_stage()) zero.stage = proto_.zero_stage();
    zero.axes.assign(proto_.zero_axes().begin(), proto_.zero_axes().end());
    zero.where = where.ToString();
    if (!zero.axes.empty()) zero.axes_where = Where("zero_axes", 0).ToString();
  }

  void ReadMicrobatches() {
    const SpecLocation where = Where("microbatches"), together = Where("microbatches_together");
    if (proto_.microbatches() < 1) {
      throw Bad(where, StrCat("there cannot be ", proto_.microbatches(), " microbatches"),
                "use 1 or more");
    }
    if (proto_.microbatches_together() < 1) {
      throw Bad(
          together,
          StrCat("there cannot be ", proto_.microbatches_together(), " microbatches together"),
          "use 2, or 1");
    }
    spec_.microbatches = {proto_.microbatches(), where.ToString(), proto_.microbatches_together(),
                          together.ToString()};
  }

  void ReadPipeline() {
    PipelineSpec& pipeline = spec_.pipeline;
    pipeline.axis = proto_.pipeline_axis();
    pipeline.layers.assign(proto_.stage_layers().begin(), proto_.stage_layers().end());
    const SpecLocation virtual_stages = Where("virtual_stages");
    if (proto_.virtual_stages() < 1) {
      throw Bad(virtual_stages,
                StrCat("a stage cannot have ", proto_.virtual_stages(), " virtual stages"),
                "use 1 or more");
    }
    pipeline.virtual_stages = proto_.virtual_stages();
    pipeline.virtual_stages_where = virtual_stages.ToString();
    const bool listed = !pipeline.layers.empty();
    const SpecLocation where = listed ? Where("stage_layers", 0) : Where("pipeline_axis");
    if (listed && pipeline.axis.empty()) throw Bad(where, "stage_layers needs pipeline_axis");
    if (std::ranges::any_of(pipeline.layers, [](int n) { return n < 1; })) {
      throw Bad(where, "a stage needs one layer or more");
    }
    pipeline.where = where.ToString();
  }

  const ShardSpecFile& proto_;
  const pb::TextFormat::ParseInfoTree& info_;
  Spec spec_;
};

}  // namespace

std::string SpecLocation::ToString() const {
  return line ? StrCat("spec ", file, ":", line, ":", column) : file;
}

Spec ParseSpec(const std::string& text, const std::string& file) {
  ShardSpecFile proto;
  Errors errors(text, file);
  pb::TextFormat::Parser parser;
  pb::TextFormat::ParseInfoTree info;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&info);
  parser.AllowPartialMessage(true);  // what is missing is refused by the reader, with its place
  pb::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  if (!parser.Parse(&stream, &proto)) errors.Throw();
  return Reader(proto, info, file).Run();
}

std::vector<std::string> ShippedSpecs() {
  std::vector<std::string> names;
  for (const ShippedSpec& s : kShippedSpecs) names.emplace_back(s.name);
  return names;
}

Spec LoadSpec(const std::string& name) {
  for (const ShippedSpec& s : kShippedSpecs) {
    if (s.name == name) return ParseSpec(std::string(s.text), name);
  }
  std::error_code error;
  bool folder = std::filesystem::is_directory(name, error);  // opens, and reads as empty
  std::ifstream in(name, std::ios::binary);
  std::stringstream text;
  if (in) text << in.rdbuf();
  if (folder || !in || in.bad()) {
    const std::string guess = DidYouMean(name, ShippedSpecs());
    throw Diagnostic(
        "E5001", ExitCode::kIo, "--spec " + name,
        folder ? "that is a folder, and no shipped spec has the name"
               : "there is no such file, and no shipped spec of that name",
        StrCat("shipped: ", Join(ShippedSpecs(), ", "), guess.empty() ? "" : "; ", guess));
  }
  return ParseSpec(text.str(), name);
}

Mesh MeshFor(const Spec& spec, const Mesh& given) {
  std::vector<MeshAxis> axes;
  for (const MeshAxis& a : spec.mesh) {
    if (!given.FindAxis(a.name) && (a.size > 1 || given.num_axes() == 0)) axes.push_back(a);
  }
  axes.insert(axes.end(), given.axes().begin(), given.axes().end());
  return Mesh(std::move(axes));
}

bool GlobMatch(const std::string& pattern, const std::string& text) {
  // Greedy with one point to come back to: linear in practice, never exponential.
  size_t p = 0, t = 0, star = std::string::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] == text[t] && pattern[p] != '*'))) {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace shardc
