#include "launcher/cluster/core/requeue.h"

#include <string_view>

#include "base/concat.h"
#include "base/counted.h"
#include "base/parse_number.h"

namespace ddprun {
namespace {

// At the end of the comment: "ddprun: step 43" or "ddprun: step 43, 1 without progress".
constexpr std::string_view kMark = "ddprun: step ";
constexpr std::string_view kSince = ", ";
constexpr std::string_view kEnding = " without progress";

struct Mark {
  std::string before;  // the user's own comment
  std::optional<std::int64_t> step;
  int idle = 0;  // lives in a row that ended no further
};

Mark read_mark(const std::string& comment) {
  const std::size_t at = comment.rfind(kMark);
  if (at == comment.npos) return {.before = comment};
  std::string_view text = std::string_view(comment).substr(at + kMark.size());
  Mark mark{.before = comment.substr(0, at)};
  if (const std::size_t comma = text.find(kSince); comma != text.npos) {
    std::string_view idle = text.substr(comma + kSince.size());
    if (idle.ends_with(kEnding)) idle.remove_suffix(kEnding.size());
    mark.idle = parse_number<int>(idle).value_or(0);
    text = text.substr(0, comma);
  }
  mark.step = parse_number<std::int64_t>(text);
  return mark;
}

std::string write_mark(const Mark& mark) {
  std::string text = mark.before;
  if (!text.empty() && text.back() != ' ') text += ' ';
  text += concat(kMark, *mark.step);
  if (mark.idle > 0) text += concat(kSince, mark.idle, kEnding);
  return text;
}

}  // namespace

RequeueDecision decide_requeue(const JobLife& life) {
  RequeueDecision decision{.comment = life.comment};
  if (life.requeues >= life.most) {
    decision.why_not =
        concat("it was requeued ", counted(life.requeues, "time"), ", of --requeue=", life.most);
    return decision;
  }
  Mark mark = read_mark(life.comment);
  // A training that has never reported a step may be unable to.
  if (!life.step && (!mark.step || !life.had_workers)) return decision;
  const bool is_further = life.step && (!mark.step || *life.step > *mark.step);
  mark.idle = is_further ? 0 : mark.idle + 1;
  if (is_further) mark.step = life.step;
  if (mark.idle >= kLivesWithoutProgress) {
    decision.why_not = concat("its last ", kLivesWithoutProgress, " lives did not get past step ",
                              *mark.step, "; it may need a longer time limit");
  }
  decision.comment = write_mark(mark);
  return decision;
}

}  // namespace ddprun
