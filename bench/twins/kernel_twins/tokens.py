"""Operations on each token at both ends of a model: cross-entropy, the embedding's gradient."""
import torch
from torch.nn import functional as F

from .twin import Twin, twin


@twin("cross_entropy")
def cross_entropy(setting, dtype):
    """Losses and the gradient of their sum."""
    vocabulary = setting.shape("cross_entropy")["vocabulary"]
    x = torch.randn(setting.elements // vocabulary, vocabulary, device=setting.device).to(dtype)
    targets = torch.randint(0, vocabulary, (x.shape[0],), device=setting.device)
    columns = torch.arange(vocabulary, device=setting.device)
    x.requires_grad_()

    def eager():
        losses = F.cross_entropy(x, targets, reduction="none")
        return losses.detach(), torch.autograd.grad(losses.sum(), x)[0]

    def compiled():
        logits = x.detach().float()
        lse = torch.logsumexp(logits, -1, keepdim=True)
        losses = lse - logits.gather(1, targets[:, None])
        gradient = torch.exp(logits - lse) - (columns == targets[:, None]).float()
        return losses.squeeze(1).to(dtype), gradient.to(dtype)
    return Twin(eager, compiled)


@twin("embedding_backward")
def embedding_backward(setting, dtype):
    dy = setting.rows(dtype)
    ids = torch.randint(0, len(dy), (len(dy),), device=setting.device)

    def backward():
        return torch.ops.aten.embedding_dense_backward(dy, ids, len(dy), -1, False)
    # torch.compile makes an index_put of it that accumulates, and was 6.7 (fp32) and 9.3 times
    # (bf16) as slow as eager's, its fastest form. torch.compiler.disable changes nothing here:
    # torch.compile unwraps the function that it is given.
    return Twin(backward, never_compiled=True)
