"""AdamW: fused, with moments in bf16, and rounded stochastically."""
import torch

from .twin import Twin, twin

DECAY, LR, BETA1, BETA2 = 0.1, 1e-3, 0.9, 0.999


def adamw(setting, gradient_type, copy):
    p, m, v = (setting.flat(torch.float32) for _ in range(3))
    v.abs_()
    g, low = setting.flat(gradient_type), setting.empty(torch.bfloat16)
    step = torch.tensor(5.0, device=setting.device)

    def eager():
        torch._fused_adamw_([p], [g.float()], [m], [v], [], [step], lr=LR, beta1=BETA1, beta2=BETA2,
                            weight_decay=DECAY, eps=1e-8, amsgrad=False, maximize=False)
        return low.copy_(p) if copy else p

    def compiled():
        gradient = g.float()
        first = torch.lerp(m, gradient, 1 - BETA1)
        second = BETA2 * v + (1 - BETA2) * gradient * gradient
        size = LR / (1 - BETA1 ** 5)
        value = p * (1 - LR * DECAY) - size * first / (second.sqrt() / (1 - BETA2 ** 5) ** 0.5 + 1e-8)
        m.copy_(first)
        v.copy_(second)
        p.copy_(value)
        if copy:
            low.copy_(value)
            return low
        return p
    # Both work in place on the same state, so their outputs differ by a step and are not compared.
    result = Twin(eager, compiled)
    result.in_place = True
    return result


@twin("adamw_f32")
def adamw_f32(setting, _):
    return adamw(setting, torch.float32, copy=False)


@twin("adamw_f32_copy_bf16")
def adamw_f32_copy(setting, _):
    return adamw(setting, torch.float32, copy=True)


@twin("adamw_bf16_copy_bf16")
def adamw_bf16_copy(setting, _):
    return adamw(setting, torch.bfloat16, copy=True)


@twin("adamw_bf16_states")
def adamw_bf16_states(setting, _):
    """The moments in bf16, as torch's fused kernel has them of bf16 parameters alone: written out."""
    p, g = setting.flat(torch.float32), setting.flat(torch.float32)
    m, v = (setting.flat(torch.bfloat16).abs_() for _ in range(2))

    def step():
        first = torch.lerp(m.float(), g, 1 - BETA1)
        second = BETA2 * v.float() + (1 - BETA2) * g * g
        m.copy_(first)
        v.copy_(second)
        size = LR / (1 - BETA1 ** 5)
        p.copy_(p * (1 - LR * DECAY) - size * first / (second.sqrt() / (1 - BETA2 ** 5) ** 0.5 + 1e-8))
        return p
    result = Twin(step)
    result.in_place = True
    return result


@twin("adamw_stochastic")
def adamw_stochastic(setting, _):
    """bf16 moments, rounded up with the probability of what is cut off: as torchao writes it."""
    p, g = setting.flat(torch.float32), setting.flat(torch.float32)
    m, v = (setting.flat(torch.bfloat16).abs_() for _ in range(2))

    def rounded(x):
        noise = torch.randint_like(x, 0, 1 << 16, dtype=torch.int32)
        return ((x.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)

    def step():
        first = torch.lerp(m.float(), g, 1 - BETA1)
        second = BETA2 * v.float() + (1 - BETA2) * g * g
        m.copy_(rounded(first))
        v.copy_(rounded(second))
        size = LR / (1 - BETA1 ** 5)
        p.copy_(p * (1 - LR * DECAY) - size * first / (second.sqrt() / (1 - BETA2 ** 5) ** 0.5 + 1e-8))
        return p
    result = Twin(step)
    result.in_place = True
    return result
