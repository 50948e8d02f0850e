"""Tensors that grow in place (docs/reference/groups.md, "Growth")."""

from __future__ import annotations

from tests.pytorch.conftest import REFUSED_PRELUDE, Checked, Simulate

PRELUDE = (
    REFUSED_PRELUDE
    + """
import sys, torch, uvmalloc
MIB = 1 << 20
torch.manual_seed(0)
"""
)


def test_a_cache_grows_without_a_copy_and_takes_no_more_than_it_holds(checked: Checked) -> None:
    run = checked("""
cache = uvmalloc.growing((1, 8, 0, 64), 32768, dim=2, dtype=torch.float32)
assert cache.held_bytes == 0 and cache.tensor.shape == (1, 8, 0, 64)
address, parts, before = None, [], torch.cuda.memory_allocated()
for length in (512, 512, 1024, 2048, 4096):
    parts.append(torch.randn(1, 8, length, 64, device='cuda'))
    grown = cache.append(parts[-1])
    address = address or grown.data_ptr()
    assert grown.data_ptr() == address
    used = cache.size * 8 * 64 * 4
    assert used <= cache.held_bytes < used + 2 * MIB
assert torch.equal(grown, torch.cat(parts, dim=2))
assert cache.size == 8192 and cache.most == 32768
cache.resize(512)
assert cache.held_bytes <= 32 * MIB
assert torch.equal(cache.tensor, parts[0])
held = cache.tensor
del cache, grown
assert torch.equal(held, parts[0]), 'the tensor keeps the memory'
del held, parts
torch.cuda.synchronize()
print(torch.cuda.memory_allocated() - before)
""")
    assert run.stdout == "0\n"


def test_attention_over_a_growing_cache_equals_attention_over_joined_tensors(
    same_output: Checked,
) -> None:
    same_output("""
import torch.nn.functional as F
keys = uvmalloc.growing((2, 4, 0, 32), 256, dim=2)
values = uvmalloc.growing((2, 4, 0, 32), 256, dim=-2)
joined = [torch.empty(2, 4, 0, 32, device='cuda') for _ in range(2)]
for step in range(6):
    new = [torch.randn(2, 4, 1 + 7 * (step == 0), 32, device='cuda') for _ in range(2)]
    joined = [torch.cat(pair, dim=2) for pair in zip(joined, new)]
    k, v = keys.append(new[0]), values.append(new[1])
    query = torch.randn(2, 4, 1, 32, device='cuda')
    out = F.scaled_dot_product_attention(query, k, v)
    assert torch.equal(k, joined[0]) and torch.equal(v, joined[1])
    assert torch.allclose(out, F.scaled_dot_product_attention(query, *joined))
    print(k.sum().item())
""")


def test_a_cache_of_transformers_grows_in_place(checked: Checked) -> None:
    checked("""
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer
class GrowingLayer(DynamicLayer):
    def lazy_initialization(self, key_states, *more):
        super().lazy_initialization(key_states, *more)
        shape = (*key_states.shape[:2], 0, key_states.shape[-1])
        self.stores = [uvmalloc.growing(shape, 128, dim=2, dtype=key_states.dtype)
                       for _ in range(2)]
    def update(self, key_states, value_states, *arguments, **named):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self.stores[0].append(key_states)
        self.values = self.stores[1].append(value_states)
        return self.keys, self.values
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, vocab_size=97,
                     attn_implementation='eager')
model = LlamaForCausalLM(config).cuda().eval()
prompt = torch.randint(0, 97, (1, 9), device='cuda')
usual = model.generate(prompt, max_new_tokens=12, do_sample=False)
cache = DynamicCache()
cache.layer_class_to_replicate = GrowingLayer
cache.layers = []
grown = model.generate(prompt, max_new_tokens=12, do_sample=False, past_key_values=cache)
assert torch.equal(usual, grown)
assert all(isinstance(each, GrowingLayer) and each.stores[0].size == 20 for each in cache.layers)
""")


def test_memory_that_is_short_and_bad_input_leave_the_tensor_as_it_was(checked: Checked) -> None:
    checked(
        """
grows = uvmalloc.growing((4, MIB // 4), 4096)
grows.tensor.fill_(3)
refused(torch.OutOfMemoryError, 'memory', grows.resize, 4096)
assert grows.size == 4 and grows.tensor.sum().item() == 3 * MIB
refused(ValueError, 'accepted: 0 to 4096', grows.resize, 4097)
refused(ValueError, 'accepted: 0 to 4096', grows.resize, -1)
refused(TypeError, 'accepted: an int', grows.resize, 2.0)
refused(ValueError, 'the values have the shape (1, 5)', grows.append, torch.ones(1, 5))
refused(ValueError, 'the values have the shape (4,)', grows.append, torch.ones(4))
refused(TypeError, 'accepted: a tensor', grows.append, [1])
assert grows.size == 4 and grows.tensor.sum().item() == 3 * MIB
refused(TypeError, 'accepted: a sequence of at least one int', uvmalloc.growing, (), 4)
refused(TypeError, 'accepted: a sequence of at least one int', uvmalloc.growing, (2.0,), 4)
refused(ValueError, 'accepted: sizes of at least 0', uvmalloc.growing, (-1,), 4)
refused(ValueError, 'accepted: one of 1', uvmalloc.growing, (1,), 4, dim=1)
refused(ValueError, 'accepted: an int from 5 on', uvmalloc.growing, (5,), 4)
refused(ValueError, 'accepted: cuda', uvmalloc.growing, (1,), 4, device='cpu')
refused(ValueError, 'cuda:9 does not exist; devices: ', uvmalloc.growing, (1,), 4, device='cuda:9')
refused(ValueError, 'accepted: cuda', uvmalloc.growing, (1,), 4, device='x')
refused(ValueError, 'not quantized', uvmalloc.growing, (1,), 4, dtype=torch.quint8)
refused(TypeError, 'accepted: a torch.dtype', uvmalloc.growing, (1,), 4, dtype='float')
refused(ValueError, '2 TiB at most', uvmalloc.growing, (1,), 2**62)
refused(torch.OutOfMemoryError, 'memory', uvmalloc.growing, (1,), 2**38)
""",
        budget="256MiB",
    )


def test_its_storage_is_no_larger_than_its_elements(checked: Checked) -> None:
    checked("""
import copy, io
grows = uvmalloc.growing((2, 1024), 1 << 20)
grows.tensor.fill_(5)
file = io.BytesIO()
torch.save(grows.tensor, file)
assert len(file.getvalue()) < 64 << 10
try:
    grows.tensor.resize_(8, 1024)
except RuntimeError as error:
    assert 'not resizable' in str(error), error
else:
    raise SystemExit('it was resized beyond its memory')
copied = copy.deepcopy(grows)
copied.append(torch.zeros(1, 1024))
assert (copied.size, grows.size) == (3, 2) and copied.tensor.sum().item() == 10 * 1024
""")


def test_it_sleeps_with_its_group_however_it_has_grown(checked: Checked) -> None:
    checked("""
with uvmalloc.group('cache') as group:
    grows = uvmalloc.growing((4, MIB // 4), 256)
grows.resize(64)
grows.tensor.fill_(2)
assert group.figures().page_bytes == 64 * MIB, group.figures()
assert group.sleep() == 64 * MIB
grows.append(torch.full((16, MIB // 4), 2.0, device='cuda'))
assert group.wake() == 64 * MIB
assert grows.tensor.sum().item() == 2 * 80 * MIB // 4
other = uvmalloc.group('other').add(grows)
assert (group.figures().bytes, other.figures().bytes) == (0, 80 * MIB)
other.remove(grows.tensor)
assert other.figures().bytes == 0
""")


def test_without_uvmalloc_it_takes_the_most_at_once(simulate: Simulate) -> None:
    run = simulate(
        PRELUDE
        + """
grows = uvmalloc.growing((0, MIB // 4), 8)
print(grows.held_bytes // MIB, grows.append(torch.ones(2, MIB // 4, device='cuda')).sum().item())
""",
        native=True,
    ).check()
    assert run.stdout == "8 524288.0\n"


def test_threads_append_to_one_tensor_and_no_row_is_lost(same_output: Checked) -> None:
    same_output("""
import threading
grows = uvmalloc.growing((0, 64), 1 << 16)
def work(number):
    values = torch.full((50, 64), float(number), device='cuda')
    for _ in range(100):
        grows.append(values)
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for each in threads: each.start()
for each in threads: each.join()
torch.cuda.synchronize()
print(grows.size, [(grows.tensor == number).sum().item() for number in range(4)])
""")


def test_what_grows_in_inference_mode_may_be_written_outside_it(same_output: Checked) -> None:
    same_output("""
grows = uvmalloc.growing((0, 4), 8)
with torch.inference_mode():
    print(grows.append(torch.ones(2, 4, device='cuda')).is_inference())
grows.tensor.add_(1)
print(grows.tensor.sum().item())
""")
