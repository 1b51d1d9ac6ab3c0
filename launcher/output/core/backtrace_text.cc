#include "launcher/output/core/backtrace_text.h"

#include <algorithm>
#include <cctype>

namespace ddprun {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::string_view without_spaces_ahead(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// Returns the part after "#12 " and an address. Empty: the line is not a frame of gdb's.
std::string_view gdb_frame(std::string_view line) {
  if (line.size() < 2 || line[0] != '#' || !is_digit(line[1])) return {};
  std::string_view rest = line.substr(std::min(line.find(' '), line.size()));
  rest = without_spaces_ahead(rest);
  if (!rest.starts_with("0x")) return rest;
  const std::size_t in = rest.find(" in ");
  return in == std::string_view::npos ? rest : rest.substr(in + 4);
}

std::string_view kernel_frame(std::string_view line) {
  constexpr std::string_view kMark = "[<0>] ";
  if (!line.starts_with(kMark)) return {};
  line.remove_prefix(kMark.size());
  return line.substr(0, line.find('+'));
}

// A frame of py-spy, such as "all_reduce (torch/distributed/distributed_c10d.py:3075)". Empty
// `file`: not such a frame.
struct PythonFrame {
  std::string_view function;
  std::string_view file;
};

PythonFrame python_frame(std::string_view frame) {
  const std::size_t open = frame.rfind(" (");
  const std::size_t end = frame.rfind(".py:");
  if (open == std::string_view::npos || end == std::string_view::npos || end < open) return {};
  const std::size_t begin = open + 2;
  return {frame.substr(0, open), frame.substr(begin, end + 3 - begin)};
}

// Returns whether frames of this file wait for other ranks. Frames of checkpoints and of the
// launcher wait for disks and processes instead.
bool is_distributed(std::string_view file) {
  constexpr std::string_view kFolder = "torch/distributed/";
  const std::size_t at = file.rfind(kFolder);
  if (at == std::string_view::npos) return false;
  const std::string_view inside = file.substr(at + kFolder.size());
  return !inside.starts_with("checkpoint/") && !inside.starts_with("elastic/") &&
         !inside.starts_with("launcher/");
}

bool is_native_wait(std::string_view frame) {
  return frame.starts_with("c10d::") || frame.starts_with("gloo::");
}

// Returns the name of a native function without its arguments.
std::string native_name(std::string_view frame) {
  return std::string(frame.substr(0, frame.find_first_of("( ")));
}

}  // namespace

std::string without_arguments(std::string_view frame) {
  // py-spy prints the address of a native function without a name.
  if (frame.starts_with("0x")) {
    return "?" + std::string(frame.substr(std::min(frame.find(' '), frame.size())));
  }
  if (!python_frame(frame).file.empty()) return std::string(frame);
  // gdb's arguments end before " at FILE", " from LIBRARY" or the end. Names have brackets, too:
  // "std::function<void (int)>::operator() (this=0x1) at f.h:9".
  for (std::size_t end = frame.rfind(')'); end != frame.npos && end > 0;
       end = frame.rfind(')', end - 1)) {
    const std::string_view rest = frame.substr(end + 1);
    if (!rest.empty() && !rest.starts_with(" at ") && !rest.starts_with(" from ")) continue;
    std::size_t open = end;
    for (int depth = 1; depth > 0 && open > 0;) {
      --open;
      depth += frame[open] == ')' ? 1 : frame[open] == '(' ? -1 : 0;
    }
    if (open == 0 || frame[open] != '(' || frame[open - 1] != ' ') break;
    const std::string_view inside = frame.substr(open + 1, end - open - 1);
    if (!inside.empty() && inside.find('=') == inside.npos) break;  // py-spy: "(libc.so.6)"
    return std::string(frame.substr(0, open - 1)) + std::string(rest);
  }
  return std::string(frame);
}

std::string distributed_call_in(const std::vector<std::string>& frames) {
  std::string native;
  std::string call;
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    // gdb shows Python's frames as calls of the interpreter.
    if (frame->starts_with("_PyEval_EvalFrame")) break;
    const PythonFrame python = python_frame(*frame);
    if (python.file.empty()) {
      if (!call.empty()) break;
      if (native.empty() && is_native_wait(*frame)) native = native_name(*frame);
      continue;
    }
    if (!is_distributed(python.file)) break;
    // The outermost frame is what the program has called. Decorators are named "wrapper".
    const bool is_decorator = python.function.find("wrapper") != std::string_view::npos;
    if (call.empty() || !is_decorator) call = "torch.distributed." + std::string(python.function);
  }
  return call.empty() ? native : call;
}

std::vector<std::string> frames_in(std::string_view text) {
  std::vector<std::string> frames;
  bool in_thread = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with("Thread ")) {
      if (in_thread && !frames.empty()) break;
      in_thread = true;
      continue;
    }
    std::string_view frame = gdb_frame(line);
    if (line.starts_with("#0 ") && !frames.empty()) break;
    if (frame.empty()) frame = kernel_frame(line);
    if (frame.empty() && in_thread && line.starts_with("    ")) frame = without_spaces_ahead(line);
    if (!frame.empty()) frames.emplace_back(frame);
  }
  std::ranges::reverse(frames);
  return frames;
}

}  // namespace ddprun
