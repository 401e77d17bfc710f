"""hotrow in forty lines: a server, a table, a pull, a push, and a tiny PyTorch loop. Run it: python quickstart.py"""

import numpy as np
import torch

import hotrow
import hotrow.torch

# A server in this process, for trying things. A real one is `hotrow serve`, and connect() takes its address.
server = hotrow.serve(seed=7)
client = hotrow.connect(server.address)

# A million rows of 16 numbers: int8, 5 % of the rows hot at full precision, stepped by row-wise Adagrad.
spec = {"precision": "int8", "cache": "5%", "optimizer": "rowwise_adagrad", "learning_rate": 0.05}
item = client.create_table("item", 16, rows=1_000_000, **spec)
print(f"{item.bytes_per_row:.1f} bytes per row; at f32 it would be {4 * 16 + 4}")

# Pull rows by key. A push sends gradients; the server steps the optimizer.
keys = np.array([3, 1_415, 926_535])
before = client.pull("item", keys)
client.push("item", keys, np.ones((3, 16), np.float32))
print("moved by", np.abs(client.pull("item", keys) - before).mean())

# The same from PyTorch: a torch.nn.EmbeddingBag whose weights are on the server. backward() pushes their gradients.
bag = hotrow.torch.EmbeddingBag(client, "word", 50_000, 16, mode="mean", **spec)
head = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.5)  # for the layers here; the server has one for the table
torch.manual_seed(7)
texts = torch.randint(0, 50_000, (512, 8))  # 512 texts of 8 words
labels = (texts % 2).float().mean(1).gt(0.5).float()  # are most words odd?
for epoch in range(30):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(head(bag(texts)).squeeze(1), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 10 == 9:
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

# What did it take?
for name, table in client.stats().tables.items():
    print(f"{name}: {table.memory:,} bytes, {table.cached_rows:,} hot rows, pull hit rate {table.pull_hit_rate}")
client.close()
server.stop()
