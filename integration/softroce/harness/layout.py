"""The network layouts: what guest/layout-* build and what commands are told of it."""


RDMA_MODULES = ['rdma_rxe', 'ib_uverbs', 'rdma_ucm']


class Layout:
  """Addresses, devices and the kernel's modules; with nodes the first address is node 1's."""

  def __init__(self, name, client, server, addresses, modules):
    self.name = name
    self.modules = RDMA_MODULES + modules
    self.client_address, self.client_device = client
    self.server_address, self.server_device = server
    self.addresses = addresses

  def variables(self):
    """What a command finds in its environment."""
    return {
        'RINGROAD_CLIENT_ADDR': self.client_address,
        'RINGROAD_CLIENT_DEVICE': self.client_device,
        'RINGROAD_SERVER_ADDR': self.server_address,
        'RINGROAD_SERVER_DEVICE': self.server_device,
        'RINGROAD_RDMA_ADDRS': ' '.join(self.addresses),
    }


# In self, what is bound to no address gets the one that it connects to, as on any host that
# talks to itself: client and server share the first.
LAYOUTS = {
    'pair': Layout('pair', ('10.9.0.1', 'rxe0'), ('10.9.1.1', 'rxe1'), ['10.9.0.1', '10.9.1.1'],
                   ['veth']),
    'self': Layout('self', ('10.9.0.1', 'rxe0'), ('10.9.0.1', 'rxe0'),
                   ['10.9.0.1', '10.9.0.2', '10.9.0.3'], ['dummy']),
    'hosts': Layout('hosts', ('10.7.0.2', 'rxe0'), ('10.7.0.1', 'rxe0'), ['10.7.0.1', '10.7.0.2'],
                    ['virtio_net', '8021q']),
}


def every_module():
  return sorted({module for layout in LAYOUTS.values() for module in layout.modules})
