#include "launcher/hosts/relay_link.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/hosts/node_messages.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kRelaySaidMax = 8192;

}  // namespace

// One process there, by what travels on its channel.
class RelayedProcess : public AgentProcess {
 public:
  RelayedProcess(RelayLink& relay, uint32_t channel) : relay_(relay), channel_(channel) {}

  void Write(absl::string_view bytes) override {
    for (size_t at = 0; at < bytes.size() && takes_input_; at += kChannelBytesMax) {
      relay_.Send(channel_, ChannelEvent::kInput, bytes.substr(at, kChannelBytesMax));
    }
  }

  void CloseInput() override {
    if (std::exchange(takes_input_, false)) {
      relay_.Send(channel_, ChannelEvent::kInputEnd, "");
    }
  }

  void Kill() override { relay_.Send(channel_, ChannelEvent::kKill, ""); }

  void Move(bool /*may_read*/, std::string& out, std::string& err) override {
    const auto found = relay_.arrived_.find(channel_);
    if (found != relay_.arrived_.end()) {
      out.append(std::exchange(found->second.out, ""));
      err.append(std::exchange(found->second.err, ""));
    }
  }

  std::optional<ProcessEnd> TakeEnd(std::string& out, std::string& err) override {
    const auto found = relay_.arrived_.find(channel_);
    if (found == relay_.arrived_.end() || !found->second.end.has_value()) {
      return std::nullopt;
    }
    Move(true, out, err);
    std::optional<ProcessEnd> end = std::move(found->second.end);
    relay_.arrived_.erase(found);
    return end;
  }

  void AddTo(std::vector<pollfd>& /*entries*/, bool /*may_read*/) const override {}

 private:
  RelayLink& relay_;
  const uint32_t channel_;
  bool takes_input_ = true;
};

RelayLink::RelayLink(std::string host, std::unique_ptr<AgentProcess> process,
                     const std::string& directory, Deadline answer_by)
    : host_(std::move(host)),
      process_(std::move(process)),
      answer_by_(answer_by),
      ssh_said_(host_) {
  process_->Write(EncodeFrame(FrameKind::kRelay, directory));
}

std::unique_ptr<AgentProcess> RelayLink::Start(const std::vector<std::string>& command) {
  const uint32_t channel = next_channel_++;
  arrived_[channel].is_own = command.empty();
  Send(channel, ChannelEvent::kOpen, BytesOf(command));
  return std::make_unique<RelayedProcess>(*this, channel);
}

void RelayLink::Move(StarterConsole& console) {
  if (process_ == nullptr) {
    return;
  }
  if (state_ == State::kStarting && answer_by_.Expired()) {
    Fail();
  }
  std::string out;
  std::string err;
  process_->Move(console.HasRoom(), out, err);
  const std::optional<ProcessEnd> end = process_->TakeEnd(out, err);
  TakeOutput(out);
  said_.append(err);
  if (said_.size() > kRelaySaidMax) {
    said_.erase(0, said_.size() - kRelaySaidMax);
  }
  if (state_ == State::kReady) {
    ssh_said_.Show(err, console);
  }
  if (end.has_value()) {
    ssh_said_.ShowRest(console);
    End(*end);
  }
}

void RelayLink::AddTo(std::vector<pollfd>& entries, bool may_read) const {
  if (process_ != nullptr) {
    process_->AddTo(entries, may_read);
  }
}

void RelayLink::HangUp() {
  if (process_ != nullptr) {
    process_->CloseInput();
  }
}

void RelayLink::Kill() {
  if (process_ != nullptr) {
    process_->Kill();
  }
}

void RelayLink::Send(uint32_t channel, ChannelEvent event, absl::string_view bytes) {
  if (process_ != nullptr) {
    process_->Write(ChannelMessage{channel, event, std::string(bytes)}.ToFrame());
  }
}

void RelayLink::TakeOutput(absl::string_view bytes) {
  if (state_ == State::kFailed) {
    return;
  }
  reader_.Add(bytes);
  while (state_ != State::kFailed) {
    const absl::StatusOr<std::optional<Frame>> frame = reader_.Next();
    if (frame.ok() && !frame->has_value()) {
      return;
    }
    if (frame.ok()) {
      TakeFrame(**frame);
    } else {
      Fail();
    }
  }
}

void RelayLink::TakeFrame(const Frame& frame) {
  if (frame.kind == FrameKind::kHello && state_ == State::kStarting) {
    const absl::StatusOr<HelloMessage> hello = HelloMessage::Parse(frame.payload);
    if (!hello.ok() || hello->version != OwnVersion()) {
      Fail();  // The host is tried again without a relay, and then says which version it has.
      return;
    }
    said_.clear();  // Warnings of ssh that kept it from nothing.
    state_ = State::kReady;
  } else if (frame.kind == FrameKind::kChannel && state_ == State::kReady) {
    const absl::StatusOr<ChannelMessage> message = ChannelMessage::Parse(frame.payload);
    if (message.ok()) {
      TakeMessage(*message);
    } else {
      Fail();
    }
  }
}

void RelayLink::TakeMessage(const ChannelMessage& message) {
  const auto found = arrived_.find(message.channel);
  if (found == arrived_.end() || found->second.end.has_value()) {
    return;
  }
  Arrived& arrived = found->second;
  if (message.event == ChannelEvent::kOut) {
    arrived.out.append(message.bytes);
  } else if (message.event == ChannelEvent::kErr) {
    arrived.err.append(message.bytes);
  } else if (message.event == ChannelEvent::kEnd) {
    ProcessEnd end;
    if (absl::SimpleAtoi(message.bytes, &end.wait_status)) {
      arrived.end = end;
    }
  }
}

// Nothing is started there any more, and what runs there is cut off.
void RelayLink::Fail() {
  state_ = State::kFailed;
  Kill();
}

void RelayLink::End(const ProcessEnd& end) {
  const std::string why = DescribeSilence("ssh", said_, end);
  for (auto& [channel, arrived] : arrived_) {
    if (!arrived.end.has_value()) {
      arrived.end = ProcessEnd{
          end.wait_status,
          arrived.is_own ? why
                         : absl::StrCat("it was started from host ", host_, ", which is lost")};
    }
  }
  state_ = State::kFailed;
  process_.reset();
}

}  // namespace dtrain::launcher
