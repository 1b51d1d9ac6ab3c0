#include "launcher/output/core/console_look.h"

namespace ddprun {

ConsoleLook look_of(const ConsoleFacts& facts) {
  const bool is_terminal = facts.out && facts.err && facts.one_terminal;
  const bool can_draw = !facts.term.empty() && facts.term != "dumb";
  ConsoleLook look;
  look.coloured = is_terminal && can_draw && facts.no_color.empty() && !facts.has_json;
  look.live = look.coloured && !facts.is_typed_into;
  return look;
}

}  // namespace ddprun
