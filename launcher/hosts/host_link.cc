#include "launcher/hosts/host_link.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kSaidMax = 8192;

}  // namespace

void HostLink::Start(absl::string_view token, std::unique_ptr<AgentProcess> process,
                     std::string from) {
  process_ = std::move(process);
  from_ = std::move(from);
  plan_.job.token = std::string(token);
  process_->Write(EncodeFrame(FrameKind::kJob, plan_.job.Encode()));
  state_ = State::kGreeting;
}

void HostLink::Meet(absl::string_view endpoint) {
  if (state_ == State::kReady) {
    process_->Write(EncodeFrame(FrameKind::kMeet, endpoint));
    state_ = State::kMet;
  }
}

void HostLink::SendSignal(int signal) {
  if (process_ != nullptr) {
    process_->Write(EncodeFrame(FrameKind::kSignal, absl::StrCat(signal)));
  }
}

void HostLink::HangUp() {
  if (process_ != nullptr) {
    process_->CloseInput();
  }
}

void HostLink::Kill() const {
  if (process_ != nullptr) {
    process_->Kill();
  }
}

void HostLink::Move(StarterConsole& console) {
  if (process_ == nullptr) {
    return;
  }
  std::string out;
  std::string err;
  process_->Move(console.HasRoom(), out, err);
  TakeOutput(out, console);
  TakeErrors(err, console);
}

void HostLink::AddTo(std::vector<pollfd>& entries, bool may_read) const {
  if (process_ != nullptr) {
    process_->AddTo(entries, may_read);
  }
}

void HostLink::TakeOutput(absl::string_view bytes, StarterConsole& console) {
  if (!refused_.empty()) {
    return;  // It may write on until it is killed.
  }
  reader_.Add(bytes);
  while (refused_.empty()) {
    const absl::StatusOr<std::optional<Frame>> frame = reader_.Next();
    if (!frame.ok()) {
      refused_ = std::string(frame.status().message());
      Kill();
      return;
    }
    if (!frame->has_value()) {
      return;
    }
    TakeFrame(**frame, console);
  }
}

void HostLink::TakeFrame(const Frame& frame, StarterConsole& console) {
  switch (frame.kind) {
    case FrameKind::kHello: {
      const absl::StatusOr<HelloMessage> hello = HelloMessage::Parse(frame.payload);
      if (!hello.ok() || state_ != State::kGreeting) {
        refused_ = hello.ok() ? "a second greeting" : std::string(hello.status().message());
        Kill();
        return;
      }
      hello_ = *hello;
      said_.clear();  // Warnings of ssh that kept it from nothing.
      state_ = State::kReady;
      return;
    }
    case FrameKind::kServing:
      serving_ = serving_.empty() ? frame.payload : serving_;
      return;
    case FrameKind::kOut:
      if (is_first()) {
        console.out.Add(frame.payload);
      } else {
        out_.Show(frame.payload, console);
      }
      return;
    case FrameKind::kErr:
      if (is_first()) {
        console.err.Add(frame.payload);
      } else {
        err_.Show(frame.payload, console);
      }
      return;
    case FrameKind::kEnd: {
      int code = 0;
      if (absl::SimpleAtoi(frame.payload, &code) && code >= 0 && code < 256) {
        exit_code_ = code;
      }
      return;
    }
    case FrameKind::kJob:
    case FrameKind::kMeet:
    case FrameKind::kSignal:
    case FrameKind::kRelay:
    case FrameKind::kChannel:
      return;  // An agent does not send these.
  }
}

void HostLink::TakeErrors(absl::string_view text, StarterConsole& console) {
  said_.append(text.data(), text.size());
  if (said_.size() > kSaidMax) {
    said_.erase(0, said_.size() - kSaidMax);
  }
  // Before the agent answers, this is the reason why it does not, and is told with the others'.
  if (state_ != State::kGreeting) {
    ssh_said_.Show(text, console);
  }
}

bool HostLink::TakeEnd(StarterConsole& console) {
  std::string out;
  std::string err;
  std::optional<ProcessEnd> end;
  if (process_ != nullptr) {
    end = process_->TakeEnd(out, err);
  }
  if (!end.has_value()) {
    return false;
  }
  TakeOutput(out, console);
  TakeErrors(err, console);
  for (HostLines* const lines : {&out_, &err_, &ssh_said_}) {
    lines->ShowRest(console);
  }
  end_ = std::move(end);
  process_.reset();
  state_ = State::kEnded;
  return true;
}

std::string HostLink::Why() const {
  return refused_.empty() ? DescribeSilence(plan_.command.front(), said_, end_) : refused_;
}

}  // namespace dtrain::launcher
